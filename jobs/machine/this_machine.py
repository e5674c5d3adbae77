"""Determines the CPUs and GPUs that a local Ray would have on this machine, before Ray starts, and the workers that fit."""

import os
from dataclasses import replace

import torch

from graphmill.cluster.options import SessionOptions, WorkerOptions
from graphmill.cluster.ray.placement import Resources, place
from graphmill.cluster.ray.session import joins_a_cluster
from graphmill.jobs.machine.memory_check import available_bytes


def this_machine(asked: WorkerOptions) -> Resources:
    """The resources of a local Ray for these workers. torch counts the GPUs."""
    gpus = torch.cuda.device_count()
    return Resources(max(len(os.sched_getaffinity(0)), WorkerOptions().most, gpus), gpus, available_bytes())


def local_session(asked: WorkerOptions, session: SessionOptions) -> SessionOptions:
    """The session options to reach a cluster: the session's cluster, otherwise the cluster of the submitted job, otherwise a local Ray for these workers."""
    resources = this_machine(asked)
    return replace(session, num_cpus=resources.cpus, num_gpus=resources.gpus)


def known_resources(asked: WorkerOptions, session: SessionOptions) -> Resources | None:
    """The resources of the workers if they run on this machine. None: they run on a cluster that is not joined yet."""
    elsewhere = asked.launcher != "process" and joins_a_cluster(local_session(asked, session))
    return None if elsewhere else this_machine(asked)


def known_workers(asked: WorkerOptions, session: SessionOptions, data_bytes: int) -> WorkerOptions:
    """The workers, resolved for this machine. If the run will join a cluster, the workers stay as requested.

    Prints how the workers differ from the request. Raises ConfigError if this machine has too few resources for the request.
    """
    resources = known_resources(asked, session)
    return asked if resources is None else place(asked, resources, data_bytes)
