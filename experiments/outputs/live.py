"""Measurements that grow while a run goes on: OUTPUT/running/ALGORITHM/metrics.csv, and trackers.

The lines are those of the `metrics.csv` that a finished algorithm's folder has, chunk by chunk. The
file is gone when that folder is whole.
"""

import csv
import shutil
import time
from pathlib import Path

import fedjax_pfl as pfl
from fedjax_pfl.data.atomic_files import writing

from .run_files import HEADING, metric_rows
from .tracking import EVERY, Tracking

FOLDER = "running"


class Live:
    """An algorithm's growing file; begun anew by each process that runs the algorithm.

    As a context it is where the algorithm's trackers are open.

    Args:
      output: folder of the run.
      name: of the algorithm.
      streams: of its measurements, if any.
    """

    def __init__(self, output: Path, name: str, streams: Tracking | None = None):
        self.folder, self.streams = output / FOLDER / name, streams
        self._looked = float("-inf")
        self._written: dict[tuple[int, str], int] = {}  # last round by seed and metric

    def __enter__(self) -> "Live":
        if self.streams is not None:
            self.streams.__enter__()
        return self

    def __exit__(self, *exception) -> None:
        if self.streams is not None:
            self.streams.__exit__(*exception)

    def add(self, progress: pfl.Progress) -> None:
        """Appends what was measured since the last call, if that is some time ago."""
        now = time.monotonic()
        if progress.result is None or now - self._looked < EVERY:
            return
        result, self._looked = progress.result(), now
        self._append(result)
        if self.streams is not None:
            self.streams.add(result)

    def end(self, result: pfl.Result) -> None:
        """Sends the trackers the rest, where this is the end of the rounds."""
        if self.streams is not None:
            self.streams.add(result, last=True)

    def _append(self, result: pfl.Result) -> None:
        first = not self._written
        with writing(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
        with (
            writing(self.folder / "metrics.csv"),
            (self.folder / "metrics.csv").open("w" if first else "a", newline="") as file,
        ):
            lines = csv.writer(file)
            if first:
                lines.writerow(HEADING)
            for seed, number, metric, value in metric_rows(result):
                if number > self._written.get((seed, metric), 0):
                    self._written[seed, metric] = number
                    lines.writerow((seed, number, metric, value))

    def remove(self) -> None:
        """Removes the file, and the folder of all algorithms if it is empty."""
        shutil.rmtree(self.folder, ignore_errors=True)
        try:
            self.folder.parent.rmdir()
        except OSError:  # others are there, or it is not
            return
