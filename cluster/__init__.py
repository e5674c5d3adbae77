"""Trains on a cluster or in one process: Ray session, partition servers, trainer, evaluation, metrics. Imports: samplers, storage, core, ray."""

import logging

logging.getLogger("ray.widgets").setLevel(logging.ERROR)  # importing Ray asks a notebook to install ipywidgets
