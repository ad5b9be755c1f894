"""The folder of a run: its record and lock, and how a larger run takes it over.

`run.json` holds the identity of the run (`experiments.cli.identity`). The same command on the same
data finds the folder again, whether the run finished or was killed, and continues; another run is
refused. A larger run continues, too: more rounds start from each algorithm's last state; more seeds
are a simulation of their own, a block, with which an algorithm's result is joined; further
algorithms leave the finished ones as they are. A result stays until the larger one replaces it.
"""

import contextlib
import hashlib
import json
import shutil
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import fedjax_pfl as pfl
from fedjax_pfl.data.atomic_files import output_exists, require_version, writing
from fedjax_pfl.data.files import as_path, read_json

from ..outputs import run_files, tracking
from . import identity, provenance
from .algorithm_folders import BLOCKS, CHECKPOINTS, LAST, missing_blocks, seed_blocks
from .config import ExperimentConfig
from .start import called

RECORD, LOCK = "run.json", ".lock"
DIGEST = "digest"  # of the other entries of the record
FIRST = {LOCK, f".part-{RECORD}"}  # files that may exist before the record
TABLE = "comparison.md"  # of a run's files, the last that is written

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
    output = output_folder(config, entries)
    grows = check(output, entries)
    blocks = seed_blocks(_known(output), entries)
    names = pending(config, output, blocks)
    done = not names and not grows and (output / TABLE).exists()
    return {"output": str(output), "pending": names, "blocks": blocks, "finished": done}


def pending(config: ExperimentConfig, output: Path, blocks: Sequence[int]) -> list[str]:
    """Return the algorithms whose folders lack some seeds, or have other rounds."""
    return [name for name in config.instances if missing_blocks(output / name, config, blocks)]


def check(output: Path, now: Mapping[str, Any], may_grow: bool = True) -> bool:
    """Compare a command with the run of its output folder; return whether it is larger.

    Args:
      now: the command's identity.
      may_grow: whether it may be larger than the folder's run.

    Raises:
      InputError: the folder is neither new nor empty, and another run's.
    """
    if not output_exists("output_dir", output):
        return False
    if output.is_dir() and {path.name for path in output.iterdir()} <= FIRST:
        return False  # killed before the record was written
    record = _record(output)
    changed = identity.difference(record["flags"], now)
    grows = may_grow and identity.grows(record["flags"], now)
    if changed and not grows:
        more = ", and perhaps more --rounds, --num_seeds (without --patience) or --algorithms"
        old, new = (one.get(identity.ALGORITHMS, []) for one in (record["flags"], now))
        if not set(old) <= set(new):
            more += f" beside its own: --algorithms={','.join(dict.fromkeys([*old, *new]))}"
        raise pfl.InputError(
            f"{output} is another run: {changed}. Continue it with the same flags and data"
            f"{more * may_grow}; or give another --output_dir, and compare both folders with "
            f"{called('compare')}."
        )
    if grows and BLOCKS in record and now.get("patience") is not None:
        raise pfl.InputError(
            f"{output} has seeds of several commands, which --patience can't end together: leave "
            "the flag out, or give another --output_dir."
        )
    return grows


def _record(output: Path) -> dict[str, Any]:
    """Return a folder's record: version, flags, and blocks of the seeds if there are several."""
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
    files = [*(Path(name) / LAST for name in names), Path(TABLE)]
    return all((output / file).exists() for file in files)


@contextlib.contextmanager
def opened(output: Path, now: Mapping[str, Any], may_grow: bool = True) -> Iterator[None]:
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
        run_files.restore(output)
        grows, old = check(output, now, may_grow), _known(output)
        if old is not None:
            provenance.warn(output, old)
        if grows and old is not None:
            _take_over(output, old["flags"], now)
        record = {"version": pfl.__version__, "flags": now, **provenance.history(old or {})}
        blocks = seed_blocks(old, now) if may_grow else []
        record |= {BLOCKS: blocks} if len(blocks) > 1 else {}
        record[DIGEST] = digest_of(run_files.plain(record))
        if record != old:
            run_files.write_json(output / RECORD, record)
        yield


def _take_over(output: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Remove what is not of the larger run: the table, and with more rounds what was tracked."""
    (output / TABLE).unlink(missing_ok=True)
    if any(before.get(name) != now.get(name) for name in identity.LENGTHS):
        (output / tracking.RECORD).unlink(missing_ok=True)
        shutil.rmtree(output / "tensorboard", ignore_errors=True)
        if not (output / CHECKPOINTS).exists():
            print(
                f"note: no state of the {before['rounds']} rounds before was kept, so all rounds "
                "are simulated again: --keep_state keeps it for more rounds.",
                file=sys.stderr,
            )
