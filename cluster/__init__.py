"""Trains on a cluster or in one process: Ray session, partition servers, trainer, evaluation, metrics. Imports: samplers, storage, core, ray."""

import logging

# In a notebook, the import of Ray prints a request to install ipywidgets
logging.getLogger("ray.widgets").setLevel(logging.ERROR)
