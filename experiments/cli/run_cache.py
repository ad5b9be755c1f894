"""Checks an earlier process's files in a run's folder: complete, and of this run."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

import fedjax_pfl as pfl
from fedjax_pfl.results.result_files import damaged, remedy

LAST = "summary.json"  # of an algorithm's files


def is_complete(folder: Path) -> bool:
    """Whether an algorithm's folder exists, with the file that is written last.

    Raises:
      InputError: it exists without that file.
    """
    if (folder / LAST).exists():
        return True
    if folder.exists():
        raise pfl.InputError(f"{folder} has no {LAST}, so it is not whole. {remedy(folder)}")
    return False


def result(
    folder: Path,
    algorithm: str,
    seeds: Sequence[int],
    rounds: int,
    settings: Mapping[str, Sequence] | None = None,
) -> pfl.Result:
    """The result in a folder of this run.

    Raises:
      InputError: it is damaged, or of another algorithm, other seeds, rounds or settings.
    """
    try:
        found = pfl.Result.load(folder)
    except pfl.InputError as error:
        if remedy(folder) in str(error):
            raise
        raise pfl.InputError(f"{error} {remedy(folder)}") from error
    swept = {name: np.asarray(values) for name, values in (settings or {}).items()}
    same = found.settings.keys() == swept.keys() and all(
        np.array_equal(found.settings[name], values) for name, values in swept.items()
    )
    wanted = {
        "algorithm": (found.algorithm, algorithm),
        "seeds": (list(found.seeds), list(seeds)),
        "rounds": (found.rounds_asked if found.stopped else found.rounds, rounds),
    }
    for what, (has, needs) in wanted.items():
        if has != needs:
            raise damaged(folder / "result.json", f"its {what} are {has}, this run's {needs}")
    if not same:
        raise damaged(folder / "result.npz", "its swept settings are not this run's")
    return found
