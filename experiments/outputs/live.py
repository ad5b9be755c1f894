"""Measurements that grow while a run goes on: OUTPUT/running/ALGORITHM/metrics.csv.

The lines are those of the `metrics.csv` that a finished algorithm's folder has, chunk by chunk. The
file is gone when that folder is whole.
"""

import csv
import shutil
import time
from pathlib import Path

import fedjax_pfl as pfl
from fedjax_pfl.data.whole_files import writing

from .run_files import HEADING, metric_rows

FOLDER = "running"
EVERY = 2.0  # seconds between two looks at the measurements, which take time themselves


class Live:
    """An algorithm's growing file; begun anew by each process that runs the algorithm.

    Args:
      output: folder of the run.
      name: of the algorithm.
    """

    def __init__(self, output: Path, name: str):
        self.folder = output / FOLDER / name
        self._looked = float("-inf")
        self._written: dict[tuple[int, str], int] = {}  # last round by seed and metric

    def add(self, progress: pfl.Progress) -> None:
        """Appends what was measured since the last call, if that is some time ago."""
        now = time.monotonic()
        if progress.result is None or now - self._looked < EVERY:
            return
        first, self._looked = not self._written, now
        with writing(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
        with (
            writing(self.folder / "metrics.csv"),
            (self.folder / "metrics.csv").open("w" if first else "a", newline="") as file,
        ):
            lines = csv.writer(file)
            if first:
                lines.writerow(HEADING)
            for seed, number, metric, value in metric_rows(progress.result()):
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
