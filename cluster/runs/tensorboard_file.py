"""Writes a TensorBoard event file. It uses no thread, so that a full disk raises an error in the caller.

The format is TensorBoard's: https://github.com/tensorflow/tensorboard, records of `Event` messages.
"""

import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class EventFile:
    """An event file with scalars by step. TensorBoard shows all files of a folder together."""

    def __init__(self, folder: Path, purge_step: int) -> None:
        """Begins a file. TensorBoard then hides the steps from `purge_step` on in earlier files of the folder. Raises OSError if the file cannot be written."""
        from tensorboard.compat.proto.event_pb2 import SessionLog

        folder.mkdir(parents=True, exist_ok=True)
        # TensorBoard reads files in the order of their names. With whole seconds in the name, two files of the same second could be swapped.
        name = f"events.out.tfevents.{time.time():017.6f}.{socket.gethostname()}.{os.getpid()}"
        self._path = folder / name
        self._append(file_version="brain.Event:2")
        self._append(step=purge_step, session_log=SessionLog(status=SessionLog.START))

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        """Writes the scalars of a step. Raises OSError if the file cannot be written."""
        from tensorboard.compat.proto.summary_pb2 import Summary

        values = [Summary.Value(tag=tag, simple_value=value) for tag, value in scalars.items()]
        self._append(step=step, summary=Summary(value=values))

    def write_options(self, name: str, options: Mapping[str, Any]) -> None:
        """Writes a run's options, given by flat names, as TensorBoard's hyperparameters. Raises OSError if the file cannot be written."""
        from tensorboard.plugins.hparams.summary_v2 import hparams_pb

        plain = {key: value if isinstance(value, bool | int | float) else str(value) for key, value in options.items()}
        self._append(step=0, summary=hparams_pb(plain, trial_id=name))

    def _append(self, **fields: Any) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.summary.writer.record_writer import RecordWriter

        with open(self._path, "ab") as stream:
            RecordWriter(stream).write(Event(wall_time=time.time(), **fields).SerializeToString())
