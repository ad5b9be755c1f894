"""A run that grows in its folder: more rounds, more seeds, or further algorithms.

More rounds continue each algorithm's last state. More seeds are a simulation of their own, a part,
and an algorithm's result joins its parts. Further algorithms leave the finished ones as they are.
Files that a growing run would replace move to OUTPUT/earlier first.
"""

import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import jax
import numpy as np

import fedjax_pfl as pfl
from fedjax_pfl.data.whole_files import writing
from fedjax_pfl.results.joining import join_seeds
from fedjax_pfl.results.model_files import load_models, model_axes

from ..outputs import tracking
from . import run_cache

RECORD, LOCK = "run.json", ".lock"
CHECKPOINTS = "checkpoints"
EARLIER = "earlier"  # folder of results that a larger run replaced
PARTS = "seed_parts"  # of the record: numbers of seeds, where there are several parts
ROUNDS, SEEDS, ALGORITHMS = "rounds", "num_seeds", "algorithms"
EVERY_WAY = (ROUNDS, SEEDS, ALGORITHMS)
# Flags in which a run with more rounds may differ.
LENGTHENED = {"rounds", "patience", "matrix_rounds"}
KEPT_IN_PLACE = {LOCK, RECORD, CHECKPOINTS, EARLIER, "partition.npz", "partition.png"}
# What trackers have of finished seeds, which further seeds leave as it is.
TRACKED = {tracking.RECORD, "tensorboard"}
COMPARED = ("comparison.md", "comparison.csv", "clients.csv", "new_clients.md", "*.png")


def growth(
    before: Mapping[str, Any], now: Mapping[str, Any], ways: Collection[str] = EVERY_WAY
) -> str | None:
    """Returns the way in which a command makes a run larger, or None.

    New seeds may come together with new algorithms, and are the way then.

    Args:
      before, now: `resume.configuration` of the folder's run and of the command.
      ways: those that are allowed, of `EVERY_WAY`.
    """
    changed = {name for name in before.keys() | now.keys() if before.get(name) != now.get(name)}
    if not changed:
        return None
    more = now.get("rounds", 0) > before.get("rounds", 0)
    if ROUNDS in ways and (changed == {"patience"} or (more and changed <= LENGTHENED)):
        return ROUNDS
    old, new = before.get(ALGORITHMS, []), now.get(ALGORITHMS, [])
    added = tuple(f"{name}." for name in new if name not in old)
    explained = {ALGORITHMS, SEEDS} | {name for name in changed if name.startswith(added)}
    if added and set(before.get("import_file", ())) <= set(now.get("import_file", ())):
        explained.add("import_file")  # of the new algorithms
    if not changed <= explained or not set(old) <= set(new):
        return None
    if SEEDS in changed:
        grows = now[SEEDS] > before.get(SEEDS, 0) and now.get("patience") is None
        return SEEDS if grows and SEEDS in ways else None
    return ALGORITHMS if added and ALGORITHMS in ways else None


def seed_parts(record: Mapping[str, Any] | None, now: Mapping[str, Any]) -> list[int]:
    """Returns the number of seeds of each part of a run, those of the first command first.

    Args:
      record: content of the folder's `run.json`, or None where there is none yet.
      now: `resume.configuration` of the command.
    """
    if record is None:
        return [now[SEEDS]]
    counts = record.get(PARTS) or [record["flags"][SEEDS]]
    added = now[SEEDS] - sum(counts)
    return [*counts, added] if added else counts


def set_aside(output: Path, way: str, before: Mapping[str, Any]) -> None:
    """Moves the files that a larger run replaces to a folder of their own, the table first.

    If the process is killed meanwhile, the same command moves the rest.
    """
    if way == ALGORITHMS:
        files = [path for name in COMPARED for path in output.glob(name)]
        name = f"algorithms_{len(before[ALGORITHMS])}"
    else:
        files = list(output.iterdir())
        seeds = range(before["seed"], before["seed"] + before[SEEDS])
        name = (
            f"rounds_{before['rounds']}" if way == ROUNDS else _part_name(seeds, before["rounds"])
        )
    kept_here = KEPT_IN_PLACE | (TRACKED if way == SEEDS else set())
    files = [path for path in files if path.name not in kept_here]
    files = [path for path in files if not path.name.startswith(".part-")]
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


def _part_name(seeds: Sequence[int], rounds: int) -> str:
    return f"seeds_{seeds[0]}-{seeds[-1]}_rounds_{rounds}"


def part_folder(output: Path, algorithm: str, seeds: Sequence[int], rounds: int) -> Path:
    """The folder of an algorithm's result for some of its seeds."""
    return output / EARLIER / _part_name(seeds, rounds) / algorithm


def plan(
    output: Path, algorithm: str, counts: Sequence[int], first: int, rounds: int
) -> Iterator[tuple[range, bool]]:
    """Yields the seeds of each part of a result, and whether it is finished.

    A finished part may have the seeds of several of the counts.

    Args:
      counts: of `seed_parts`; the first part begins with the seed `first`.
    """
    bounds = list(accumulate(counts, initial=first))
    while len(bounds) > 1:
        options = [range(bounds[0], end) for end in reversed(bounds[1:])]
        whole = [
            s for s in options if run_cache.is_complete(part_folder(output, algorithm, s, rounds))
        ]
        seeds = whole[0] if whole else options[-1]
        yield seeds, bool(whole)
        bounds = bounds[bounds.index(seeds.stop) :]


def checkpoint_folder(output: Path, algorithm: str, seeds: Sequence[int], first: int) -> Path:
    """The folder of a part's checkpoints."""
    own = "" if seeds[0] == first else f".seed_{seeds[0]}"
    return output / CHECKPOINTS / f"{algorithm}{own}"


def joined(folders: Mapping[Path, Sequence[int]], algorithm: str, rounds: int) -> pfl.Result:
    """The result of all parts of an algorithm, from their folders and seeds."""
    return join_seeds(
        [run_cache.result(place, algorithm, seeds, rounds) for place, seeds in folders.items()]
    )


def joined_models(folders: Collection[Path]) -> dict[str, Any]:
    """The models of all parts, as `pfl.save_models` takes them."""
    files = [folder / "models.npz" for folder in folders]
    first, *others = [load_models(file) for file in files]
    models = jax.tree.map(lambda *leaves: np.concatenate(leaves), first, *others)
    axes = model_axes(files[0])
    return {
        name: model if "client" in axes[name] else pfl.Broadcast(model)
        for name, model in models.items()
    }
