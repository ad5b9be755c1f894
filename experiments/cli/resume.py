"""Resuming a run: the content of its folder, the lock on it, and how a run stops.

`run.json` in a run's folder has its flags and their meaning (`experiments.cli.identity`). The same
command on the same data finds the folder again, whether the run finished or was killed, and
continues; another configuration is refused.
"""

import contextlib
import hashlib
import json
import signal
import sys
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import absl.flags

import fedjax_pfl as pfl
from fedjax_pfl.data.whole_files import read_json, require_version, there, writing

from ..outputs import run_files
from . import changed_code, flags, identity, plugins
from .growth import EVERY_WAY, LOCK, PARTS, RECORD, SEEDS, growth, seed_parts, set_aside
from .start import called

DIGEST = "digest"  # of the other entries of the record
FIRST = {LOCK, f".part-{RECORD}"}  # files that may exist before the record
# Flags that change neither which files are written nor numbers, but for the rounding of sums over
# devices; trackers can be added later.
NEUTRAL = ("data_dir", "output_dir", "compilation_cache", "checkpoint_seconds", "tensorboard")
NEUTRAL += ("headline", "keep_state", "trust_flagfiles", "devices", "mesh", "distributed")
NEUTRAL += ("wandb", "mlflow", "client_state", "accept_changed_code")

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
    code = plugins.digests(values.pop("import_file"))  # the files' contents, not their places
    values |= {"import_file": code} if code else {}
    said = {name: value for name, value in values.items() if value is not identity.REPLACED}
    return run_files.plain(dict(sorted(said.items())))


def default_folder(args: absl.flags.FlagValues, **more) -> Path:
    """A name that depends only on flags and data: runs/DATASET-PARTITION-HASH."""
    text = json.dumps(configuration(args, **more), sort_keys=True)
    rule = "file" if args.partition_file is not None else args.partition
    dataset = args.dataset.partition(":")[0]
    return Path("runs") / f"{dataset}-{rule}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def check_folder(
    output: Path, args: absl.flags.FlagValues, ways: Collection[str] = EVERY_WAY, **more
) -> None:
    """Raises `InputError` unless the folder is new, empty, or this very run's.

    Args:
      ways: in which this run may be larger than the folder's, see `growth`.
    """
    if not there("output_dir", output):
        return
    if output.is_dir() and {path.name for path in output.iterdir()} <= FIRST:
        return  # empty, or of a run that was killed before its record was written
    record, now = _record(output), configuration(args, **more)
    before, _ = _accepted(args, record["flags"], now, ways)
    changed = identity.difference(before, now)
    if not changed:
        return
    if not growth(before, now, ways):
        if _is_this_run(changed_code.taken_over(before, now), now, ways):
            raise pfl.InputError(
                f"{output} was made with other code: {changed}. Give {changed_code.FLAG} to go on "
                "with the code of now, which remarks on the rows say, or another --output_dir."
            )
        raise pfl.InputError(f"{output} is another run: {changed}. {_remedy(before, now, ways)}")
    if PARTS in record and now.get("patience") is not None:
        raise pfl.InputError(
            f"{output} has seeds of several commands, which --patience can't end together: leave "
            "the flag out, or give another --output_dir."
        )


def _is_this_run(before: dict[str, Any], now: dict[str, Any], ways: Collection[str]) -> bool:
    return not identity.difference(before, now) or growth(before, now, ways) is not None


def _accepted(
    args: absl.flags.FlagValues, before: dict[str, Any], now: dict[str, Any], ways: Collection[str]
) -> tuple[dict[str, Any], dict[str, str]]:
    """(a run's identity, with the code of now if the user accepts that; how the code changed)."""
    if not args.accept_changed_code or _is_this_run(before, now, ways):
        return before, {}
    return changed_code.taken_over(before, now), changed_code.changes(before, now)


def _remedy(before: dict[str, Any], now: dict[str, Any], ways: Collection[str]) -> str:
    """A sentence on what else the command may be, where it is no run of the folder."""
    if SEEDS not in ways:
        return "Give the same flags and data to continue it, or another --output_dir."
    if now.get("patience") is not None and growth(before, now | {"patience": None}, ways):
        return (
            "With --patience all seeds end together, so none can be added: give another "
            f"--output_dir, and compare both folders with {called('compare')}."
        )
    return (
        "Give the same flags and data to continue it, with more rounds, seeds or algorithms if "
        f"need be; or another --output_dir, and compare both folders with {called('compare')}."
    )


def grown(output: Path, args: absl.flags.FlagValues, **more) -> str | None:
    """The way in which this run is larger than its folder's (`growth`), or None."""
    if not (output / RECORD).exists():
        return None
    now = configuration(args, **more)
    before, _ = _accepted(args, _record(output)["flags"], now, EVERY_WAY)
    return growth(before, now)


def remarks(output: Path, algorithm: str) -> list[str]:
    """Remarks on the row of an algorithm that is simulated in a run's folder now."""
    if not (output / RECORD).exists():  # deleted meanwhile: what is written next says so
        return []
    return changed_code.remarks(_record(output), algorithm)


def parts(output: Path, args: absl.flags.FlagValues, **more) -> list[int]:
    """Numbers of seeds that the run simulates together, see `growth.seed_parts`."""
    record = _record(output) if (output / RECORD).exists() else None
    return seed_parts(record, configuration(args, **more))


def _record(output: Path) -> dict[str, Any]:
    """A folder's record: the version, the flags, and the parts of the seeds if there are any."""
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
    if record.get(DIGEST) != digest_of(record):
        raise pfl.InputError(f"{path} is damaged: it was changed after it was written. {remedy}")
    return record


def digest_of(record: dict[str, Any]) -> str:
    """SHA-256 of a record's other entries."""
    plain = {name: value for name, value in record.items() if name != DIGEST}
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()


def finished(output: Path, names) -> bool:
    """Whether every algorithm's folder and the comparison are whole."""
    files = [*(Path(name) / "summary.json" for name in names), Path("comparison.md")]
    return all((output / file).exists() for file in files)


@contextlib.contextmanager
def opened(
    output: Path, args: absl.flags.FlagValues, ways: Collection[str] = EVERY_WAY, **more
) -> Iterator[None]:
    """Makes the folder, or reopens it, for this process alone; `ways` as in `check_folder`.

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
        counts = parts(output, args, **more) if SEEDS in ways else []
        now, old, accepted, way = configuration(args, **more), {}, {}, None
        if (output / RECORD).exists():
            check_folder(output, args, ways, **more)
            old = _record(output)
            changed_code.warn(output, old)
            _, accepted = _accepted(args, old["flags"], now, ways)
            way = grown(output, args, **more)
            if way is not None:
                set_aside(output, way, old["flags"])
        history = changed_code.history(old, accepted)
        if way is not None or accepted or any(old.get(name) != history[name] for name in history):
            record = {"version": pfl.__version__, "flags": now, **history}
            record |= {PARTS: counts} if len(counts) > 1 else {}
            run_files.write_json(output / RECORD, record | {DIGEST: digest_of(record)})
        yield


CHUNK = 50  # rounds between two looks at `Stopper`, at most


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

    def __call__(self, progress: pfl.Progress) -> bool:
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
