"""The folder of a run: its record and lock, and how a larger run takes it over.

`run.json` holds the identity of the run (`experiments.cli.identity`). The same command on the same
data finds the folder again, whether the run finished or was killed, and continues; another run is
refused. A larger run continues, too: more rounds start from each algorithm's last state; more seeds
are a simulation of their own, a part, and an algorithm's result joins its parts; further algorithms
leave the finished ones as they are. Files that a larger run replaces move to OUTPUT/earlier first.
"""

import contextlib
import hashlib
import json
import shutil
import sys
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import fedjax_pfl as pfl
from fedjax_pfl.data.atomic_files import output_exists, read_json, require_version, writing
from fedjax_pfl.data.files import as_path

from ..outputs import run_files, tracking
from . import identity, provenance
from .algorithm_folders import CHECKPOINTS, EARLIER, LAST, PARTS, is_complete, part_name, seed_parts
from .config import ExperimentConfig
from .identity import ALGORITHMS, EVERY_WAY, ROUNDS, SEEDS, Verdict
from .start import called

RECORD, LOCK = "run.json", ".lock"
DIGEST = "digest"  # of the other entries of the record
FIRST = {LOCK, f".part-{RECORD}"}  # files that may exist before the record
KEPT_IN_PLACE = {LOCK, RECORD, CHECKPOINTS, EARLIER, "partition.npz", "partition.png"}
# What trackers have of finished seeds, which further seeds leave as it is.
TRACKED = {tracking.RECORD, "tensorboard"}
COMPARED = ("comparison.md", "comparison.csv", "clients.csv", "new_clients.md", "*.png")

try:
    import fcntl
except ImportError:  # a system without locks
    fcntl = None


def output_folder(config: ExperimentConfig, entries: Mapping[str, Any]) -> Path:
    """Return the folder of --output_dir, by default runs/DATASET-PARTITION-HASH.

    Args:
      entries: the run's identity, of which the hash is.
    """
    if config.output_dir is None:
        text = json.dumps(entries, sort_keys=True)
        rule = "file" if config.partition_file is not None else config.partition
        dataset = config.dataset.partition(":")[0]
        return Path("runs") / f"{dataset}-{rule}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"
    if not config.output_dir.strip():
        raise pfl.InputError("--output_dir must be the name of a folder, got ''.")
    return as_path("--output_dir", config.output_dir)


def inspect(config: ExperimentConfig, entries: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of `build.Folder` for a run, as JSON values.

    Args:
      entries: the run's identity.

    Raises:
      InputError: see `check`.
    """
    output, names = output_folder(config, entries), list(config.instances)
    way = check(output, entries, accept=config.accept_changed_code).way
    every = way not in (None, ALGORITHMS)
    pending = [name for name in names if every or not is_complete(output / name)]
    return {
        "output": str(output),
        "pending": pending,
        "parts": seed_parts(_known(output), entries),
        "finished": finished(output, names) and way is None,
    }


def check(
    output: Path, now: Mapping[str, Any], ways: Collection[str] = EVERY_WAY, accept: bool = False
) -> Verdict:
    """Compare a command with the run of its output folder.

    Args:
      now: the command's identity.
      ways: in which it may be larger than the folder's run.
      accept: whether changed code is accepted (--accept_changed_code).

    Raises:
      InputError: the folder is neither new nor empty, and another run's.
    """
    if not output_exists("output_dir", output):
        return Verdict(True, None, "", {})
    if output.is_dir() and {path.name for path in output.iterdir()} <= FIRST:
        return Verdict(True, None, "", {})  # killed before the record was written
    record = _record(output)
    verdict = identity.compare(record["flags"], now, ways, accept)
    if verdict.code_only:
        raise pfl.InputError(
            f"{output} was made with other code: {verdict.changed}. Give --accept_changed_code to "
            "continue with the present code, which a note below the table says, or another "
            "--output_dir."
        )
    if not verdict.same:
        what = _remedy(record["flags"], now, ways)
        raise pfl.InputError(f"{output} is another run: {verdict.changed}. {what}")
    if verdict.way and PARTS in record and now.get("patience") is not None:
        raise pfl.InputError(
            f"{output} has seeds of several commands, which --patience can't end together: leave "
            "the flag out, or give another --output_dir."
        )
    return verdict


def _remedy(before: Mapping[str, Any], now: Mapping[str, Any], ways: Collection[str]) -> str:
    """Suggest other commands if the folder holds another run."""
    if SEEDS not in ways:
        return "Give the same flags and data to continue it, or another --output_dir."
    if now.get("patience") is not None and identity.growth(before, {**now, "patience": None}, ways):
        return (
            "With --patience all seeds end together, so none can be added: give another "
            f"--output_dir, and compare both folders with {called('compare')}."
        )
    return (
        "Continue it with the same flags and data and either more --rounds, or more --num_seeds "
        "and --algorithms; or give another --output_dir, and compare both folders with "
        f"{called('compare')}."
    )


def _record(output: Path) -> dict[str, Any]:
    """Return a folder's record: version, flags, and parts of the seeds if any."""
    path, what = output / RECORD, f"Choose another --output_dir, or delete {output} to restart."
    if not path.exists():
        raise pfl.InputError(
            f"{output} exists already and is not a run to continue, and nothing is ever "
            "overwritten: choose a new folder with --output_dir, or leave the flag out for one "
            "named after the flags."
        )
    try:
        record = read_json(path)
    except pfl.InputError as error:
        raise pfl.InputError(f"{error} {what}") from error
    if not isinstance(record, dict) or not isinstance(record.get("flags"), dict):
        raise pfl.InputError(f"{path} is damaged: it doesn't name the run's flags. {what}")
    require_version(path, record.get("version"), what)
    if record.get(DIGEST) != digest_of(record):
        raise pfl.InputError(f"{path} is damaged: it was changed after it was written. {what}")
    return record


def _known(output: Path) -> dict[str, Any] | None:
    return _record(output) if (output / RECORD).exists() else None


def digest_of(record: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a record's other entries."""
    plain = {name: value for name, value in record.items() if name != DIGEST}
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()


def finished(output: Path, names: Collection[str]) -> bool:
    """Return whether the folder has all algorithms' results and their comparison."""
    files = [*(Path(name) / LAST for name in names), Path("comparison.md")]
    return all((output / file).exists() for file in files)


@contextlib.contextmanager
def opened(
    output: Path, now: Mapping[str, Any], ways: Collection[str] = EVERY_WAY, accept: bool = False
) -> Iterator[None]:
    """Create or take over the folder, locked for this process; arguments as of `check`.

    Raises:
      InputError: another process writes to it.
    """
    with writing(output):
        output.mkdir(parents=True, exist_ok=True)
        broken = [path for path in output.iterdir() if path.is_symlink() and not path.exists()]
    if broken:
        raise pfl.InputError(f"{broken[0]} is a link that leads nowhere: delete it.")
    with writing(output / LOCK):
        lock = (output / LOCK).open("w")
    with lock:
        if fcntl is not None:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise pfl.InputError(f"Another process is writing to {output}.") from None
        verdict, old = check(output, now, ways, accept), _known(output)
        counts = seed_parts(old, now) if SEEDS in ways else []
        if old is not None:
            provenance.warn(output, old)
            if verdict.way == ROUNDS and not (output / CHECKPOINTS).exists():
                print(
                    f"note: no state of the {old['flags']['rounds']} rounds before was kept, so "
                    "all rounds are simulated again: --keep_state keeps it for more rounds.",
                    file=sys.stderr,
                )
            if verdict.way is not None:
                move_to_earlier(output, verdict.way, old["flags"])
        history = provenance.history(old or {}, verdict.code)
        unchanged = old is not None and history.items() <= old.items()
        if verdict.way is not None or verdict.code or not unchanged:
            record = {"version": pfl.__version__, "flags": now, **history}
            record |= {PARTS: counts} if len(counts) > 1 else {}
            run_files.write_json(output / RECORD, record | {DIGEST: digest_of(record)})
        yield


def remarks(output: Path, algorithm: str) -> list[str]:
    """Return remarks on the row of an algorithm now simulated in a run's folder."""
    record = _known(output)  # None if it was deleted meanwhile: the next write will fail
    return [] if record is None else provenance.remarks(record, algorithm)


def move_to_earlier(output: Path, way: str, before: Mapping[str, Any]) -> None:
    """Move the files that a larger run replaces to a subfolder, the table first.

    If the process is killed meanwhile, the same command moves the rest.
    """
    if way == ALGORITHMS:
        files = [path for name in COMPARED for path in output.glob(name)]
        name = f"algorithms_{len(before[ALGORITHMS])}"
    else:
        files = list(output.iterdir())
        seeds = range(before["seed"], before["seed"] + before[SEEDS])
        name = f"rounds_{before['rounds']}" if way == ROUNDS else part_name(seeds, before["rounds"])
    stay = KEPT_IN_PLACE | (TRACKED if way == SEEDS else set())
    files = [p for p in files if p.name not in stay and not p.name.startswith(".part-")]
    if way != ROUNDS and not files:
        return
    place, k = output / EARLIER / name, 1
    while any((place / path.name).exists() for path in files):
        k += 1
        place = output / EARLIER / f"{name}-{k}"
    with writing(place):
        place.mkdir(parents=True, exist_ok=True)
        for path in sorted(files, key=lambda path: path.name != "comparison.md"):
            path.replace(place / path.name)
        shutil.copy(output / RECORD, place / RECORD)
