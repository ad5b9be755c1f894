"""Live metrics of a running simulation: OUTPUT/running/ALGORITHM/metrics.csv, and trackers.

The lines are those of the `metrics.csv` that a finished algorithm's folder has, chunk by chunk. The
file is removed once that folder is complete.
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
    """Live measurements of a simulation: a context in which its trackers are open.

    The file is begun anew by each process that runs the algorithm.

    Args:
      output: folder of the run.
      name: of the algorithm, or of a sweep's program.
      streams: of the measurements.
      grows: whether there is a growing file.
    """

    def __init__(self, output: Path, name: str, streams: Tracking, grows: bool):
        self.folder, self.streams, self.grows = output / FOLDER / name, streams, grows
        self._last = float("-inf")
        self._written: dict[tuple[int, str], int] = {}  # last round by seed and metric

    def __enter__(self) -> "Live":
        self.streams.__enter__()
        return self

    def __exit__(self, *exception) -> None:
        self.streams.__exit__(*exception)

    def add(self, progress: pfl.Progress) -> None:
        """Append the measurements since the last call, at most once in some seconds."""
        now, used = time.monotonic(), self.grows or self.streams.opened
        if not used or progress.result is None or now - self._last < EVERY:
            return
        result, self._last = progress.result(), now
        if self.grows:
            self._append(result)
        self.streams.add(result)

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
        """Remove the file, and the folder of all algorithms if it is empty."""
        shutil.rmtree(self.folder, ignore_errors=True)
        try:
            self.folder.parent.rmdir()
        except OSError:  # others are there, or it is not
            return
