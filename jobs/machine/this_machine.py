"""The CPUs and GPUs that a local Ray would have on this machine, known before it is started, and the workers that they allow."""

import os
from dataclasses import replace

import torch

from graphmill.cluster.options import SessionOptions, WorkerOptions
from graphmill.cluster.ray.placement import Resources, place
from graphmill.cluster.ray.session import joins_a_cluster
from graphmill.jobs.machine.memory_check import available_bytes


def this_machine(asked: WorkerOptions) -> Resources:
    """The resources of a local Ray for these workers; GPUs are counted by torch."""
    gpus = torch.cuda.device_count()
    return Resources(max(len(os.sched_getaffinity(0)), WorkerOptions().most, gpus), gpus, available_bytes())


def local_session(asked: WorkerOptions, session: SessionOptions) -> SessionOptions:
    """How to reach the session's cluster, else the cluster of the submitted job, else a local Ray for these workers."""
    resources = this_machine(asked)
    return replace(session, num_cpus=resources.cpus, num_gpus=resources.gpus)


def known_resources(asked: WorkerOptions, session: SessionOptions) -> Resources | None:
    """The workers' resources, if they run here; None: they run on a cluster that is not joined yet."""
    elsewhere = asked.launcher != "process" and joins_a_cluster(local_session(asked, session))
    return None if elsewhere else this_machine(asked)


def known_workers(asked: WorkerOptions, session: SessionOptions, data_bytes: int) -> WorkerOptions:
    """The workers, resolved if no cluster is to be joined, else as asked for.

    Prints the differences to the request. Raises ConfigError if this machine lacks what is asked for.
    """
    resources = known_resources(asked, session)
    return asked if resources is None else place(asked, resources, data_bytes)
