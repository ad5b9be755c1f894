"""The folders of algorithms in a run's folder, and the blocks of seeds that they hold.

Seeds that later commands add are simulations of their own, blocks, whose results are joined with
what an algorithm's folder has.
"""

import tempfile
from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import jax
import numpy as np

import fedjax_pfl as pfl
from fedjax_pfl.data.files import read_json
from fedjax_pfl.results.model_files import load_models, model_axes
from fedjax_pfl.results.result_files import damaged, remedy

from .config import ExperimentConfig
from .identity import SEEDS

LAST = "summary.json"  # of an algorithm's files, the last that is written
BLOCKS = "seed_blocks"  # of the run's record: numbers of seeds, where there are several blocks
CHECKPOINTS = "checkpoints"


def seed_blocks(record: Mapping[str, Any] | None, now: Mapping[str, Any]) -> list[int]:
    """Return the number of seeds of each block of a run, those of the first command first.

    Args:
      record: content of the folder's `run.json`, or None where there is none yet.
      now: the command's identity.
    """
    if record is None:
        return [now[SEEDS]]
    counts = record.get(BLOCKS) or [record["flags"][SEEDS]]
    added = now[SEEDS] - sum(counts)
    return [*counts, added] if added else counts


def missing_blocks(
    folder: Path, config: ExperimentConfig, counts: Sequence[int]
) -> list[list[int]]:
    """Return the seeds of each block that an algorithm's folder lacks.

    A result with other rounds, or ended by another patience, is to be made again.

    Args:
      counts: of `seed_blocks`.

    Raises:
      InputError: the folder is damaged.
    """
    ends = accumulate(counts, initial=config.seeds[0])
    blocks = [list(range(first, end)) for first, end in pairwise(ends)]
    if not is_complete(folder):
        return blocks
    made = read_json(folder / "config.json")
    try:
        ended = made["flags"]["training"]["rounds"], made["flags"]["run"]["patience"]
        there = set(made["seeds"]) if ended == (config.rounds, config.patience) else set()
    except (KeyError, TypeError):
        text = "it does not tell the rounds and seeds of the result"
        raise damaged(folder / "config.json", text) from None
    return [seeds for seeds in blocks if not set(seeds) <= there]


def checkpoint_folder(output: Path, algorithm: str, seeds: Sequence[int], first: int) -> Path:
    """Return the folder of a block's checkpoints."""
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
    settings: Sequence[Mapping[str, Any]] | None = None,
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
    swept = pfl.engine.swept_values(settings)
    same = result.settings.keys() == swept.keys() and all(
        np.array_equal(result.settings[name], values) for name, values in swept.items()
    )
    if not same:
        raise damaged(folder / "result.npz", "its swept settings are not this run's")
    return result


def models_of(folder: Path) -> dict[str, Any]:
    """Return the models of an algorithm's folder, as `pfl.save_models` takes them."""
    models, axes = load_models(folder / "models.npz"), model_axes(folder / "models.npz")
    return {n: one if "client" in axes[n] else pfl.Broadcast(one) for n, one in models.items()}


def as_read(models: Mapping[str, Any]) -> dict[str, Any]:
    """Return models on the host, in the form in which `models_of` reads them."""
    with tempfile.TemporaryDirectory() as place:
        pfl.save_models(Path(place) / "models.npz", models)
        return models_of(Path(place))


def joined_models(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the models of all seeds from those of several blocks."""
    return jax.tree.map(lambda *leaves: np.concatenate(leaves), *parts)
