"""Transfer of a simulation's measurements to trackers, each at most once.

OUTPUT/tracking.json has, by tracker and stream, the tracker's id of the stream, the last round that
was sent, and whether the stream is complete. It is written before rows are sent: if a process is
killed in between, the tracker lacks them, but no row is ever sent twice.
"""

import itertools
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import fedjax_pfl as pfl
from fedjax_pfl.data.files import read_json
from fedjax_pfl.results.result_table import named_settings
from fedjax_pfl.utils.errors import cut, sentence, shown

from .run_files import metric_rows, plain, write_json
from .trackers import Opened, Row, Stream, Tracker, from_flags

RECORD = "tracking.json"
BATCH = 10  # rounds in one call of a tracker: MLflow takes 1,000 rows at once
EVERY = 2.0  # seconds from one batch to the next: gathering measurements takes time itself


class Tracking:
    """The streams of one algorithm's simulation: a context in which they are open.

    What a service refuses is a warning, once; the simulation goes on without it.

    Args:
      args: the flags.
      output: folder of the run or sweep.
      place: the algorithm, or the folder of a sweep's program.
      facts: the flags that identify the run, and the algorithm's hyperparameters, by name.
      settings: what is swept inside the program: names to the values of all settings.
      seeds: those of the simulation, by default all of the flags.

    Raises:
      InputError: the record is damaged.
    """

    def __init__(
        self,
        args: Any,
        output: Path,
        place: str,
        facts: Mapping[str, Any],
        settings: Mapping[str, Any] | None = None,
        seeds: Sequence[int] | None = None,
    ):
        self.output, self.place = output, place
        self.swept = {name: np.asarray(values) for name, values in (settings or {}).items()}
        self.seeds = range(args.seed, args.seed + args.num_seeds) if seeds is None else seeds
        self.facts = {name: value for name, value in facts.items() if value not in (None, "", [])}
        self.trackers = {tracker.key: tracker for tracker in from_flags(args)}
        self.path = output / RECORD
        known = self.trackers and self.path.exists()
        self.record: dict[str, Any] = _checked(self.path) if known else {}
        self.opened: dict[str, dict[str, Opened]] = {}
        self.is_whole = False
        self._last = float("-inf")

    def __enter__(self) -> "Tracking":
        for key, tracker in self.trackers.items():
            if not self._done(key):
                self.opened[key] = {}
                self._try(key, lambda key=key, tracker=tracker: self._open(key, tracker))
        return self

    def __exit__(self, *exception) -> None:
        for key in list(self.opened):
            self._try(key, lambda key=key: self._close(key))
        self.opened.clear()

    def follow(self, progress: pfl.Progress) -> None:
        """Send what a running simulation has measured, at most once in some seconds."""
        now = time.monotonic()
        if self.opened and progress.result is not None and now - self._last >= EVERY:
            self._last = now
            self.add(progress.result())

    def add(self, result: pfl.Result, last: bool = False) -> None:
        """Send what the streams lack; `last` completes them."""
        for key in list(self.opened):
            self._try(key, lambda key=key: self._add(key, result))
        self.is_whole = last and result.stopped != "asked"

    def _streams(self) -> list[list[Stream]]:
        """Return the streams by setting and seed."""
        values = list(zip(*self.swept.values(), strict=True)) or [()]
        names = named_settings(self.swept) or [""]
        result = []
        for name, value in zip(names, values, strict=True):
            own = self.facts | dict(zip(self.swept, value, strict=True))
            result.append(
                [
                    Stream(self.output, self.place, name, seed, plain(own | {"seed": seed}))
                    for seed in self.seeds
                ]
            )
        return result

    def _entry(self, key: str, stream: Stream) -> dict[str, Any]:
        streams = self.record.setdefault(key, {})
        return streams.setdefault(stream.key, {"id": None, "round": 0, "whole": False})

    def _done(self, key: str) -> bool:
        sent = self.record.get(key, {})
        every = [stream.key for streams in self._streams() for stream in streams]
        return all(sent.get(name, {}).get("whole", False) for name in every)

    def _open(self, key: str, tracker: Tracker) -> None:
        for stream in (stream for streams in self._streams() for stream in streams):
            entry = self._entry(key, stream)
            opened = tracker.open(stream, entry["id"] if tracker.goes_on else None)
            entry["id"] = opened.id
            entry |= {} if tracker.goes_on else {"round": 0}
            entry["whole"] = False
            self.opened[key][stream.key] = opened
            write_json(self.path, self.record)
        where = next(iter(self.opened[key].values())).where
        print(f"{self.place}: logged to {tracker.flag}, {where}", flush=True)

    def _add(self, key: str, result: pfl.Result) -> None:
        batches: list[tuple[str, list[Row]]] = []
        for setting, streams in enumerate(self._streams()):
            every = sorted(metric_rows(result, setting), key=lambda row: row[1])
            for stream in streams:
                entry = self._entry(key, stream)
                rows = [row[1:] for row in every if row[0] == stream.seed]
                fresh = [row for row in rows if row[0] > entry["round"]]
                for _, group in itertools.groupby(fresh, lambda row: (row[0] - 1) // BATCH):
                    batches.append((stream.key, list(group)))
                entry["round"] = max(entry["round"], result.rounds)
        if batches:
            self._send(key, batches)

    def _send(self, key: str, batches: Sequence[tuple[str, list[Row]]]) -> None:
        """Send rows that are already recorded, and remove refused ones from the record."""
        write_json(self.path, self.record)
        for k, (name, rows) in enumerate(batches):
            try:
                self.opened[key][name].log(rows)
            except Exception:
                for other, lost in batches[k:]:
                    entry = self.record[key][other]
                    entry["round"] = min(entry["round"], lost[0][0] - 1)
                write_json(self.path, self.record)
                raise

    def _close(self, key: str) -> None:
        for name, opened in self.opened[key].items():
            opened.close(self.is_whole)
            self.record[key][name]["whole"] = self.is_whole
        write_json(self.path, self.record)

    def _try(self, key: str, act: Callable[[], None]) -> None:
        """Call a tracker; after a failure it is not called again in this process.

        Raises:
          OutputError: files of this run can't be written.
        """
        try:
            act()
        except pfl.OutputError:
            raise
        except Exception as error:  # services and their packages raise what they like
            flag = self.trackers[key].flag
            del self.opened[key]
            print(
                f"warning: {self.place} is no longer logged to {flag} ({sentence(error)}); the "
                "same command sends what is missing once it is finished.",
                file=sys.stderr,
                flush=True,
            )


def _checked(path: Path) -> dict[str, Any]:
    """Return the record; raise `InputError` if an entry isn't of the form of `_entry`."""

    def fits(entry: Any) -> bool:
        if not isinstance(entry, dict) or entry.keys() != {"id", "round", "whole"}:
            return False
        known = isinstance(entry["id"], str | None) and isinstance(entry["whole"], bool)
        return known and type(entry["round"]) is int

    record = read_json(path)
    for key, streams in record.items():
        if not (isinstance(streams, dict) and all(map(fits, streams.values()))):
            raise pfl.InputError(
                f"{path} is damaged: its entry {cut(shown(key), 100)} doesn't tell what was sent. "
                "Delete it, and all is sent again."
            )
    return record


def finish(args: Any, output: Path, place: str, facts: Mapping, result: pfl.Result) -> None:
    """Send what trackers lack of a finished result; `facts` without its hyperparameters.

    Raises:
      InputError: see `Tracking`.
    """
    facts = {**facts, **result.hyperparameters}
    with Tracking(args, output, place, facts, result.settings) as streams:
        streams.add(result, last=True)
