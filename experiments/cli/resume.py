"""Resuming a run: the content of its folder, the lock on it, and how a run stops.

`run.json` in a run's folder has its flags and their meaning (`experiments.cli.identity`). The same
command on the same data finds the folder again, whether the run finished or was killed, and
continues; another configuration is refused.
"""

import contextlib
import hashlib
import json
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import absl.flags

import fedjax_pfl as pfl
from fedjax_pfl.data.whole_files import read_json, require_version, there, writing

from ..outputs import run_files
from . import flags, identity, own_code

RECORD = "run.json"
DIGEST = "digest"  # of the record's flags
CHECKPOINTS = "checkpoints"
LOCK = ".lock"
FIRST = {LOCK, f".part-{RECORD}"}  # files that may exist before the record
# Flags that change neither which files are written nor numbers, but for the rounding of sums over
# devices; trackers can be added later.
NEUTRAL = ("data_dir", "output_dir", "compilation_cache", "checkpoint_seconds", "tensorboard")
NEUTRAL += ("headline", "keep_state", "trust_flagfiles", "devices", "mesh", "distributed")
NEUTRAL += ("wandb", "mlflow", "client_state")
# Flags in which a run may differ that continues another.
LENGTHENED = {"rounds", "patience", "matrix_rounds"}
EARLIER = "earlier"  # folder of the results of a run before it was lengthened
KEPT_IN_PLACE = {LOCK, RECORD, CHECKPOINTS, EARLIER, "partition.npz", "partition.png"}

try:
    import fcntl
except ImportError:  # a system without locks
    fcntl = None


def configuration(args: absl.flags.FlagValues, **more) -> dict[str, Any]:
    """All flags and facts that identify a run, by name, as JSON values.

    `more` are entries that add to the flags or replace them (`identity.describe`).
    """
    groups = flags.resolved(args).values()
    values = {name: value for group in groups for name, value in group.items()}
    pairs = flags.repeated() - {"import_file"}  # in any order, and perhaps twice
    values |= {name: sorted(set(values[name])) for name in pairs & values.keys()}
    values = {name: value for name, value in values.items() if name not in NEUTRAL} | more
    code = own_code.digests(values.pop("import_file"))  # the files' contents, not their places
    values |= {"import_file": code} if code else {}
    said = {name: value for name, value in values.items() if value is not identity.REPLACED}
    return run_files.plain(dict(sorted(said.items())))


def default_folder(args: absl.flags.FlagValues, **more) -> Path:
    """A name that depends only on flags and data: runs/DATASET-PARTITION-HASH."""
    text = json.dumps(configuration(args, **more), sort_keys=True)
    rule = "file" if args.partition_file is not None else args.partition
    dataset = args.dataset.partition(":")[0]
    return Path("runs") / f"{dataset}-{rule}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def check_folder(output: Path, args: absl.flags.FlagValues, longer: bool = True, **more) -> None:
    """Raises `InputError` unless the folder is new, empty, or this very run's.

    Args:
      longer: whether it may also be a shorter run, which this one goes on with.
    """
    if not there("output_dir", output):
        return
    if output.is_dir() and {path.name for path in output.iterdir()} <= FIRST:
        return  # empty, or of a run that was killed before its record was written
    before, now = _flags(output), configuration(args, **more)
    changed = identity.difference(before, now)
    if changed and not (longer and _is_longer(before, now)):
        raise pfl.InputError(
            f"{output} is another run: {changed}. Give the same flags and data to continue it, "
            "or another --output_dir."
        )


def _is_longer(before: dict[str, Any], now: dict[str, Any]) -> bool:
    """Whether a run goes on where another ended: more rounds, or another patience."""
    changed = {name for name in before.keys() | now.keys() if before.get(name) != now.get(name)}
    rounds = before.get("rounds")
    more = isinstance(rounds, int) and now.get("rounds", 0) > rounds
    return changed == {"patience"} or (more and changed <= LENGTHENED)


def lengthened(output: Path, args: absl.flags.FlagValues, **more) -> int | None:
    """The rounds of the run in a folder that this one makes longer; None where it makes none."""
    if not (output / RECORD).exists():
        return None
    before = _flags(output)
    return before["rounds"] if _is_longer(before, configuration(args, **more)) else None


def _set_aside(output: Path, rounds: int) -> None:
    """Moves the results of so many rounds to a folder of their own, the table first.

    If the process is killed meanwhile, the same command moves the rest.
    """
    files = [path for path in output.iterdir() if path.name not in KEPT_IN_PLACE]
    files = [path for path in files if not path.name.startswith(".part-")]
    place, k = output / EARLIER / f"rounds_{rounds}", 1
    while any((place / path.name).exists() for path in files):
        k += 1
        place = output / EARLIER / f"rounds_{rounds}-{k}"
    with writing(place):
        place.mkdir(parents=True, exist_ok=True)
        for path in sorted(files, key=lambda path: path.name != "comparison.md"):
            path.replace(place / path.name)
        shutil.copy(output / RECORD, place / RECORD)


def _flags(output: Path) -> dict[str, Any]:
    """The flags that a folder's record names."""
    path, remedy = output / RECORD, f"Choose another --output_dir, or delete {output} to restart."
    if not path.exists():
        raise pfl.InputError(
            f"{output} exists already and is no run to continue, and nothing is ever "
            "overwritten: choose a new folder with --output_dir, or leave the flag out for one "
            "named after the flags."
        )
    try:
        record = read_json(path)
        before = record.get("flags")
    except pfl.InputError as error:
        raise pfl.InputError(f"{error} {remedy}") from error
    if not isinstance(before, dict):
        raise pfl.InputError(f"{path} is damaged: it doesn't name the run's flags. {remedy}")
    version = record.get("version")
    require_version(path, version, remedy)
    of_0_3 = DIGEST not in record and str(version).startswith("0.3.")  # which wrote none
    if not of_0_3 and record.get(DIGEST) != _digest(before):
        raise pfl.InputError(f"{path} is damaged: it was changed after it was written. {remedy}")
    return before


def _digest(values: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def finished(output: Path, names) -> bool:
    """Whether every algorithm's folder and the comparison are whole."""
    files = [*(Path(name) / "summary.json" for name in names), Path("comparison.md")]
    return all((output / file).exists() for file in files)


@contextlib.contextmanager
def opened(
    output: Path, args: absl.flags.FlagValues, longer: bool = True, **more
) -> Iterator[None]:
    """Makes the folder, or reopens it, for this process alone; `longer` as in `check_folder`.

    Raises:
      InputError: another process writes to it.
    """
    with writing(output):
        output.mkdir(parents=True, exist_ok=True)
        nowhere = [path for path in output.iterdir() if path.is_symlink() and not path.exists()]
    if nowhere:
        raise pfl.InputError(f"{nowhere[0]} is a link that leads nowhere: delete it.")
    with writing(output / LOCK):
        lock = (output / LOCK).open("w")
    with lock:
        if fcntl is not None:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise pfl.InputError(f"Another process is writing to {output}.") from None
        configured = configuration(args, **more)
        record = {"version": pfl.__version__, "flags": configured, DIGEST: _digest(configured)}
        if (output / RECORD).exists():
            check_folder(output, args, longer, **more)
            shorter = lengthened(output, args, **more)
            if shorter is not None:
                _set_aside(output, shorter)
                run_files.write_json(output / RECORD, record)
        else:
            run_files.write_json(output / RECORD, record)
        yield


class Stopped(Exception):
    """A simulation ended early because it was asked to.

    Attributes:
      round: rounds done; the checkpoints hold them.
    """

    def __init__(self, done: int):
        super().__init__(f"Stopped after round {done}.")
        self.round = done


def went_on(result: pfl.Result) -> pfl.Result:
    """The result of a simulation; raises `Stopped` where it was asked to end early."""
    if result.stopped == "asked":
        raise Stopped(result.rounds)
    return result


class Stopper:
    """SIGINT and SIGTERM as a request to stop after the current chunk; a second one is not asked.

    Attributes:
      signal: number of the signal that came, or 0.
    """

    def __init__(self):
        self.signal = 0

    def __call__(self) -> bool:
        return bool(self.signal)

    def __enter__(self) -> "Stopper":
        self._before = {}
        for number in (signal.SIGINT, signal.SIGTERM):
            with contextlib.suppress(ValueError):  # not the main thread: nothing to catch there
                self._before[number] = signal.signal(number, self._heard)
        return self

    def __exit__(self, *_) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _heard(self, number, frame) -> None:
        if self.signal:
            raise KeyboardInterrupt
        self.signal = number
        print(
            "\nStopping: the rounds in progress are finished and kept. Once more stops at once.",
            file=sys.stderr,
            flush=True,
        )
