"""The numbers of a run where TensorBoard finds them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

from protail._files import explained


class EventFile:
    """Write records for TensorBoard.

    TensorBoard's own writer puts the machine's name into the file's and waits in a thread before
    it writes; here each record is written at once.

    Parameters
    ----------
    folder : Path
        Where event files are. Each time a run goes on it gets another one.
    hide_from : int
        Step from which on TensorBoard is to forget what earlier files say.

    Raises
    ------
    ImportError
        When TensorBoard is not installed.
    """

    def __init__(self, folder: Path, hide_from: int) -> None:
        events = import_module("tensorboard.compat.proto.event_pb2")
        summaries = import_module("tensorboard.compat.proto.summary_pb2")
        records = import_module("tensorboard.summary.writer.record_writer")
        self._event, self._summary = events.Event, summaries.Summary
        self._folder = folder
        try:
            folder.mkdir(exist_ok=True)
            # TensorBoard reads them in the order of their names.
            number = len(list(folder.iterdir()))
            name = f"events.out.tfevents.{int(time.time()):010d}.{number:05d}"
            self._file = (folder / name).open("xb")
        except OSError as error:
            raise explained(error, folder) from error
        self._records = records.RecordWriter(self._file)
        self._write(file_version="brain.Event:2")
        start = events.SessionLog(status=events.SessionLog.START)
        self._write(step=hide_from, session_log=start)

    def append(self, step: int, numbers: Mapping[str, float]) -> None:
        """Write the numbers of one record, each under its name."""
        values = [
            self._summary.Value(tag=name, simple_value=float(number))
            for name, number in numbers.items()
        ]
        self._write(step=step, summary=self._summary(value=values))

    def close(self) -> None:
        """Give the file back."""
        with suppress(OSError):  # what could not be written has been told
            self._file.close()

    def _write(self, **fields: Any) -> None:
        event = self._event(wall_time=time.time(), **fields)
        try:
            self._records.write(event.SerializeToString())
            self._file.flush()
        except OSError as error:
            raise explained(error, self._folder) from error
