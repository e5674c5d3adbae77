"""What a local Ray would have on this machine, known before it is started: its CPUs and GPUs, and the workers they allow."""

import os
from dataclasses import replace

import torch

from graphmill.cluster.options import SessionOptions, WorkerOptions
from graphmill.cluster.ray.placement import Resources, place
from graphmill.cluster.ray.session import joins_a_cluster
from graphmill.jobs.machine.memory_check import available_bytes


def this_machine(asked: WorkerOptions) -> Resources:
    """What a local Ray has for these workers; GPUs are those that torch can use."""
    gpus = torch.cuda.device_count()
    return Resources(max(len(os.sched_getaffinity(0)), WorkerOptions().most, gpus), gpus, available_bytes())


def local_session(asked: WorkerOptions, session: SessionOptions) -> SessionOptions:
    """How to reach the session's cluster, else the one that the job was submitted to, else a local Ray for these workers."""
    there = this_machine(asked)
    return replace(session, num_cpus=there.cpus, num_gpus=there.gpus)


def known_resources(asked: WorkerOptions, session: SessionOptions) -> Resources | None:
    """What the workers have, where they run here; None: a cluster that is not joined yet."""
    elsewhere = asked.launcher != "process" and joins_a_cluster(local_session(asked, session))
    return None if elsewhere else this_machine(asked)


def known_workers(asked: WorkerOptions, session: SessionOptions, data_bytes: int) -> WorkerOptions:
    """The workers as far as is known before a session is open: resolved where no cluster is to be joined, else as asked for.

    Prints what differs from what was asked for. Raises ConfigError where this machine lacks it.
    """
    there = known_resources(asked, session)
    return asked if there is None else place(asked, there, data_bytes)
