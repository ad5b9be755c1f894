"""The folders of algorithms in a run's folder: complete results, and parts of their seeds.

Seeds that later commands add are simulations of their own. Their results are parts in
OUTPUT/earlier, which an algorithm's result joins.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import jax
import numpy as np

import fedjax_pfl as pfl
from fedjax_pfl.results.joining import join_seeds
from fedjax_pfl.results.model_files import load_models, model_axes
from fedjax_pfl.results.result_files import damaged, remedy

from .identity import SEEDS

LAST = "summary.json"  # of an algorithm's files, the last that is written
EARLIER = "earlier"  # folder of results that a larger run replaced
PARTS = "seed_parts"  # of the run's record: numbers of seeds, where there are several parts
CHECKPOINTS = "checkpoints"


def seed_parts(record: Mapping[str, Any] | None, now: Mapping[str, Any]) -> list[int]:
    """Return the number of seeds of each part of a run, those of the first command first.

    Args:
      record: content of the folder's `run.json`, or None where there is none yet.
      now: the command's identity.
    """
    if record is None:
        return [now[SEEDS]]
    counts = record.get(PARTS) or [record["flags"][SEEDS]]
    added = now[SEEDS] - sum(counts)
    return [*counts, added] if added else counts


def part_name(seeds: Sequence[int], rounds: int) -> str:
    """Return the name of the folder of some of the seeds."""
    return f"seeds_{seeds[0]}-{seeds[-1]}_rounds_{rounds}"


def part_folder(output: Path, algorithm: str, seeds: Sequence[int], rounds: int) -> Path:
    """Return the folder of an algorithm's result for some of its seeds."""
    return output / EARLIER / part_name(seeds, rounds) / algorithm


def plan(
    output: Path, algorithm: str, counts: Sequence[int], first: int, rounds: int
) -> Iterator[tuple[range, bool]]:
    """Yield the seeds of each part of a result, and whether it is finished.

    A finished part may have the seeds of several of the counts.

    Args:
      counts: of `seed_parts`; the first part begins with the seed `first`.
    """
    bounds = list(accumulate(counts, initial=first))
    while len(bounds) > 1:
        options = [range(bounds[0], end) for end in reversed(bounds[1:])]
        complete = [s for s in options if is_complete(part_folder(output, algorithm, s, rounds))]
        seeds = complete[0] if complete else options[-1]
        yield seeds, bool(complete)
        bounds = bounds[bounds.index(seeds.stop) :]


def checkpoint_folder(output: Path, algorithm: str, seeds: Sequence[int], first: int) -> Path:
    """Return the folder of a part's checkpoints."""
    own = "" if seeds[0] == first else f".seed_{seeds[0]}"
    return output / CHECKPOINTS / f"{algorithm}{own}"


def is_complete(folder: Path) -> bool:
    """Return whether an algorithm's folder exists, with the file that is written last.

    Raises:
      InputError: it exists without that file.
    """
    if (folder / LAST).exists():
        return True
    if folder.exists():
        raise pfl.InputError(f"{folder} has no {LAST}, so it is not whole. {remedy(folder)}")
    return False


def load_result(
    folder: Path,
    algorithm: str,
    seeds: Sequence[int],
    rounds: int,
    settings: Mapping[str, Sequence] | None = None,
) -> pfl.Result:
    """Return the result in a folder of this run.

    Raises:
      InputError: it is damaged, or of another algorithm, other seeds, rounds or settings.
    """
    try:
        result = pfl.Result.load(folder)
    except pfl.InputError as error:
        if remedy(folder) in str(error):
            raise
        raise pfl.InputError(f"{error} {remedy(folder)}") from error
    wanted = {
        "algorithm": (result.algorithm, algorithm),
        "seeds": (list(result.seeds), list(seeds)),
        "rounds": (result.rounds_asked if result.stopped else result.rounds, rounds),
    }
    for what, (has, needs) in wanted.items():
        if has != needs:
            raise damaged(folder / "result.json", f"{what}: {has} there, {needs} in this run")
    swept = {name: np.asarray(values) for name, values in (settings or {}).items()}
    same = result.settings.keys() == swept.keys() and all(
        np.array_equal(result.settings[name], values) for name, values in swept.items()
    )
    if not same:
        raise damaged(folder / "result.npz", "its swept settings are not this run's")
    return result


def joined(folders: Mapping[Path, Sequence[int]], algorithm: str, rounds: int) -> pfl.Result:
    """Return the result of all parts of an algorithm, from their folders and seeds."""
    parts = [load_result(place, algorithm, seeds, rounds) for place, seeds in folders.items()]
    return join_seeds(parts)


def joined_models(folders: Collection[Path]) -> dict[str, Any]:
    """Return the models of all parts, as `pfl.save_models` takes them."""
    files = [folder / "models.npz" for folder in folders]
    first, *others = [load_models(file) for file in files]
    models = jax.tree.map(lambda *leaves: np.concatenate(leaves), first, *others)
    axes = model_axes(files[0])
    return {
        name: model if "client" in axes[name] else pfl.Broadcast(model)
        for name, model in models.items()
    }
