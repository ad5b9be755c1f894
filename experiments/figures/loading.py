"""Search for finished runs in folders, and their configurations."""

import glob
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import fedjax_pfl as pfl
from fedjax_pfl.data.atomic_files import require_version
from fedjax_pfl.data.files import as_path, read_json
from fedjax_pfl.results.result_files import OLDER, damaged, remedy
from fedjax_pfl.utils.errors import InputError, shown

from ..cli.start import called
from .runs import CONFIG, SUMMARY, Run

DEPTH = 4  # levels that are searched, a given folder's own included
# What figures read of a configuration.
ENTRIES = {
    "algorithm": str, "hyperparameters": dict, "seeds": list, "model": dict,
    "flags.comparison.algorithms": list, "flags.data": dict, "flags.rule": dict,
    "partition.rule": str, "partition.options": dict,
}  # fmt: skip
KINDS = {str: "a text", dict: "an object", list: "a list"}


def find(
    folders: Sequence[str], algorithms: Sequence[str] = (), metric: str | None = None
) -> list[Run]:
    """Find the finished runs in and below folders, in that order, each once.

    Args:
      folders: an algorithm's folder, a comparison's, or one of many comparisons; * and ? match
        names.
      algorithms: only these; all by default.
      metric: the measure that is shown; by default the main metric of their task.

    Raises:
      InputError: no such folder, nothing finished in it, an algorithm that none of them ran, a
        metric that one of them lacks, or runs of tasks with several main metrics.
    """
    runs: dict[Path, Run] = {}
    for word in folders:
        word = str(as_path("The folder of a run", word))
        matches = sorted(glob.glob(word), key=natural) if glob.has_magic(word) else [word]
        if not matches:
            raise InputError(f"No folder matches {word}.")
        for match in map(Path, matches):
            if not match.is_dir():
                raise InputError(f"No folder {match}: --runs takes folders of finished runs.")
            below = ["*/" * k + SUMMARY for k in range(DEPTH)]
            every = (path for pattern in below for path in match.glob(pattern))
            whole = (path for path in every if not path.parent.name.startswith("."))
            summaries = sorted(whole, key=natural)
            if not summaries:
                if (match / "sweep.csv").is_file():
                    raise InputError(f"{match} is a sweep, not a finished run: leave it out.")
                raise InputError(
                    f"{match} is not a finished run: neither it nor a folder in it has a "
                    f"summary.json, which `{called('run')}` writes last."
                )
            for path in summaries:
                runs.setdefault(path.parent.resolve(), read(path.parent))
    ran = {run.algorithm for run in runs.values()}
    chosen = {pfl.core.algorithm_name(name, ran, "algorithm among the runs") for name in algorithms}
    ordered = sorted_by_given(list(runs.values()))
    return measured([run for run in ordered if not chosen or run.algorithm in chosen], metric)


def measured(runs: Sequence[Run], metric: str | None) -> list[Run]:
    """Return the runs with the measure to show.

    Raises:
      InputError: a run lacks it, or they have several main metrics and none is chosen.
    """
    runs = [replace(run, metric=metric) for run in runs]
    for run in runs:
        known = [one.name for one in run.result.measures]
        if metric is not None and metric not in known:
            raise InputError(
                f"{run.folder} has no {metric!r}: it has {', '.join(known)}; --metrics of a run "
                "says what is measured."
            )
    if runs and (other := next((r for r in runs if r.measure != runs[0].measure), None)):
        raise InputError(
            f"{runs[0].folder} leads with {runs[0].measure.name}, {other.folder} with "
            f"{other.measure.name}: they do not compare."
        )
    return runs


def natural(path: str | Path) -> list:
    """Return a sort key by which k2 precedes k10."""
    parts = re.split(r"(\d+(?:\.\d+)?)", str(path))
    return [(0, float(part), "") if part[:1].isdigit() else (1, 0.0, part) for part in parts]


def sorted_by_given(runs: list[Run]) -> list[Run]:
    """Sort the algorithms of one comparison by its --algorithms."""
    places = {run.folder.parent: i for i, run in reversed(list(enumerate(runs)))}

    def key(run: Run):
        named = run.config["flags"]["comparison"]["algorithms"]
        at = named.index(run.algorithm) if run.algorithm in named else len(named)
        return places[run.folder.parent], at

    return sorted(runs, key=key)


def read(folder: Path) -> Run:
    """Read the run of an algorithm's folder.

    Raises:
      InputError: its files aren't as `experiments.run` writes them; names the file and the remedy.
    """
    try:
        config, summary = (read_json(folder / name) for name in (CONFIG, SUMMARY))
    except InputError as error:
        raise InputError(f"{folder} is not a finished run: {error} {remedy(folder)}") from error
    versions = config.get("versions")
    if isinstance(versions, dict) and "fedjax_pfl" in versions:
        require_version(folder / CONFIG, versions["fedjax_pfl"], remedy(folder), OLDER)
    if (trouble := _invalid_entry(config)) is not None:
        raise damaged(folder / CONFIG, trouble)
    if not isinstance(summary.get("partition_hash", ""), str):
        raise damaged(folder / SUMMARY, "partition_hash must be a text")
    return Run(folder, config, summary)


def _invalid_entry(config: Mapping[str, Any]) -> str | None:
    """Return a sentence on a missing or malformed entry, or None."""
    for place, kind in ENTRIES.items():
        value: Any = config
        for name in place.split("."):
            value = value.get(name) if isinstance(value, dict) else None
        if value is None:
            return f"it lacks {place}, perhaps as another version's"
        if not isinstance(value, kind):
            return f"{place} must be {KINDS[kind]}, and is {shown(value)}"
    seeds, groups, options = config["seeds"], config["flags"], config["partition"]["options"]
    if not seeds or not all(type(seed) is int for seed in seeds):
        return f"seeds must be whole numbers, and are {shown(seeds)}"
    if not all(isinstance(one, dict) for one in (*groups.values(), config.get("training", {}))):
        return "training and each group of flags must be objects"
    if not all(isinstance(name, str) for name in groups["comparison"]["algorithms"]):
        return "the algorithms must be names"
    if not isinstance(options.get("client_groups"), list | None):
        return "client_groups of the partition must be a list"
    return None
