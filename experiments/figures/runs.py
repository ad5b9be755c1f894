"""Finished runs as figures see them: settings, scores, records and matrices by name.

What a run's folder holds is said in `experiments.outputs`.
"""

import glob
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from experiments.flags import RULE_FLAG
from fedjax_pfl.data.places import read_npz
from fedjax_pfl.errors import InputError, unknown_name

# Flags that say where things lie or how they are computed, not what is computed.
PLACES = {
    "algorithms", "set", "data_dir", "partition_file", "output_dir", "save_models",
    "compilation_cache", "matrix_rounds", "client_execution", "seed_execution",
    "eval_batch_size",
}  # fmt: skip
# Flags that say what is measured beside a run.
MEASURING = ("adapt_epochs", "adapt_steps", "adapt_leaves", "adapt_when", "eval_every")
# Runs that differ in these alone are repetitions of one experiment.
REPEATS = ("seed", "num_seeds", "partition_seed")
METHOD = "method"
DEPTH = 4  # folders below a given one that are searched


@dataclass(frozen=True, eq=False)
class Run:
    """One method's folder of a finished run; arrays are read when they are asked for.

    Attributes:
      folder: with `summary.json` in it.
      config: content of its `config.json`.
      summary: content of its `summary.json`.
    """

    folder: Path
    config: dict[str, Any]
    summary: dict[str, Any]

    @property
    def method(self) -> str:
        return self.config["algorithm"]

    @property
    def hyperparameters(self) -> dict[str, Any]:
        return self.config["hyperparameters"]

    @property
    def seeds(self) -> list[int]:
        return self.config["seeds"]

    @property
    def num_clients(self) -> int:
        return self.summary["num_clients"]

    @cached_property
    def settings(self) -> dict[str, Any]:
        """Every setting by name: "method", flags, METHOD.HYPERPARAMETER, and a hyperparameter's
        bare name where no flag has it. Options of the partition rule are those it was drawn with.
        """
        groups = self.config["flags"]
        flags = {name: value for group in groups.values() for name, value in group.items()}
        drawn = self.config["partition"]["options"].items()
        drawn = {RULE_FLAG.get(name, name): value for name, value in drawn}
        flags |= {name: drawn.get(name) for name in groups["rule"]}
        flags |= {"num_clients": self.num_clients, "partition": self.config["partition"]["rule"]}
        # The option of another rule is no setting of this run.
        alien = {name for name in groups["rule"] if flags[name] is None}
        flags = {k: v for k, v in flags.items() if k not in PLACES and k not in alien}
        own = {f"{self.method}.{name}": value for name, value in self.hyperparameters.items()}
        return {METHOD: self.method} | self.hyperparameters | flags | own

    @cached_property
    def _clients(self) -> dict[str, np.ndarray]:
        return _arrays(self.folder / "clients.npz")

    @cached_property
    def matrices(self) -> dict[str, np.ndarray]:
        """Content of `mixing.npz`, {} where the method records no matrix."""
        path = self.folder / "mixing.npz"
        return _arrays(path) if path.exists() else {}

    @property
    def eval_rounds(self) -> np.ndarray:
        """int [E]: rounds after which models were scored."""
        return self._clients["rounds"]

    @property
    def record_rounds(self) -> np.ndarray:
        """int [T]: 1..T."""
        return self._clients["record_rounds"]

    @property
    def test_sizes(self) -> np.ndarray:
        return self._clients["test_sizes"]

    def scored(self, split: str = "test") -> list[str]:
        """Names of the models that were scored."""
        end = f"/{split}/accuracy"
        return [name.removesuffix(end) for name in self._clients if name.endswith(end)]

    def accuracy(self, model: str = "personalized", split: str = "test") -> np.ndarray | None:
        """Fractions [S, E, N], NaN for clients without a score; None if it wasn't scored."""
        return self._clients.get(f"{model}/{split}/accuracy")

    def record(self, name: str) -> np.ndarray | None:
        """What the method recorded for each client, [S, T, N]; None if it didn't."""
        value = self._clients.get(name)
        fits = value is not None and value.ndim == 3 and value.shape[1] == len(self.record_rounds)
        return value if fits else None

    def matrix(self, name: str) -> np.ndarray | None:
        """Recorded matrices [S, Q, G, N, N] of G groups of layers (1 for the whole model).

        A single server's weights, one row for all receivers, are shown N times. None where the
        method records no such matrix.
        """
        value = self.matrices.get(name)
        if value is None or name in ("rounds", "seeds"):
            return None
        value = value[:, :, None] if value.ndim == 4 else value
        return np.broadcast_to(value, (*value.shape[:3], value.shape[-1], value.shape[-1]))

    @property
    def matrix_rounds(self) -> np.ndarray:
        """int [Q]: rounds whose matrices were kept."""
        return self.matrices["rounds"]

    def blocks(self, count: int) -> list[str]:
        """Names of the G groups of layers of a matrix."""
        names = self.config["model"]["blocks"]
        if count == len(names):
            return list(names)
        return {1: ["model"], 2: ["body", "head"]}.get(count, [f"group {g}" for g in range(count)])

    @property
    def alice(self) -> int | None:
        """The only client that the method serves, or None where it serves several."""
        served = np.flatnonzero(np.isfinite(self.accuracy()).any(axis=(0, 1)))
        return int(served[0]) if len(served) == 1 < self.num_clients else None


def find(folders: Sequence[str], methods: Sequence[str] = ()) -> list[Run]:
    """Finished runs in the folders given and below them, in that order, each once.

    Args:
      folders: a method's folder, a comparison's, or one of many comparisons; * and ? match names.
      methods: only these; all by default.

    Raises:
      InputError: no such folder, nothing finished in it, or a method that none of them ran.
    """
    found: dict[Path, Run] = {}
    for word in folders:
        word = str(Path(word).expanduser())
        matches = sorted(glob.glob(word)) if glob.has_magic(word) else [word]
        if not matches:
            raise InputError(f"No folder matches {word}.")
        for match in map(Path, matches):
            if not match.is_dir():
                raise InputError(f"No folder {match}: --runs takes folders of finished runs.")
            below = [match.glob("/".join(["*"] * k) + "/summary.json" if k else "summary.json")
                     for k in range(DEPTH)]  # fmt: skip
            summaries = sorted(path for paths in below for path in paths)
            if not summaries:
                raise InputError(
                    f"{match} is no finished run: neither it nor a folder in it has a "
                    "summary.json, which `python -m experiments.run` writes last."
                )
            for path in summaries:
                found.setdefault(path.parent.resolve(), read(path.parent))
    runs = sorted_by_given(list(found.values()))
    for name in methods:
        if name not in {run.method for run in runs}:
            raise unknown_name("method among the runs", name, {run.method for run in runs})
    return [run for run in runs if not methods or run.method in methods]


def sorted_by_given(runs: list[Run]) -> list[Run]:
    """Methods of one comparison in the order that its --algorithms names them."""
    places = {run.folder.parent: i for i, run in reversed(list(enumerate(runs)))}

    def key(run: Run):
        named = run.config["flags"]["comparison"]["algorithms"]
        at = named.index(run.method) if run.method in named else len(named)
        return places[run.folder.parent], at

    return sorted(runs, key=key)


def read(folder: Path) -> Run:
    """The run of a method's folder.

    Raises:
      InputError: a file that can't be read as what `experiments.run` writes.
    """
    try:
        texts = [(folder / f"{name}.json").read_text() for name in ("config", "summary")]
        run = Run(folder, *map(json.loads, texts))
        run.method, run.hyperparameters, run.seeds, run.num_clients  # noqa: B018
        run.settings  # noqa: B018
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(
            f"{folder} is no finished run: its config.json or summary.json can't be read "
            f"({type(error).__name__}: {error})."
        ) from error
    return run


def _arrays(path: Path) -> dict[str, np.ndarray]:
    read_npz(path, ())  # refuses what is no NPZ file
    with np.load(path, allow_pickle=False) as file:
        names = file.files
    return read_npz(path, names)


def having(
    runs: Sequence[Run], has: Callable[[Run], Any], what: str, remedy: str
) -> list[Run]:  # fmt: skip
    """Those runs of which `has(run)` isn't None.

    Raises:
      InputError: there is none; "none of the runs has `what`: `remedy`".
    """
    kept = [run for run in runs if has(run) is not None]
    if not kept:
        some = ", ".join(str(run.folder) for run in runs[:3]) + (", ..." if len(runs) > 3 else "")
        raise InputError(f"None of the runs has {what} ({some}): {remedy}.")
    return kept


def with_record(runs: Sequence[Run], name: str) -> list[Run]:
    """Runs whose method records `name` for each client."""
    known = sorted({k for run in runs for k in run._clients if run.record(k) is not None})
    return having(
        runs, lambda run: run.record(name), f"the record {name!r}",
        f"run a method that records it; these record {', '.join(known)}",
    )  # fmt: skip


def with_matrix(runs: Sequence[Run], name: str) -> list[Run]:
    """Runs whose method records the matrix `name`."""
    known = sorted({k for run in runs for k in run.matrices if run.matrix(k) is not None})
    have = f"these record {', '.join(known)} (choose with --matrix)" if known else "these have none"
    return having(
        runs, lambda run: run.matrix(name), f"the matrix {name!r}",
        f"run a method that records it, with --matrix_rounds for the rounds to keep; {have}",
    )  # fmt: skip


# How a run comes to score a model beside the personalized one.
SCORED_WITH = {
    "adapted": "run with --adapt_steps=10 --adapt_when=last",
    "guidance": "run feddwa with --set=feddwa.score_guidance=true",
    "global": "run a method with one server model",
}


def with_scores(runs: Sequence[Run], models: Sequence[str], split: str = "test") -> list[Run]:
    """Runs that scored all of `models` on `split`."""
    for model in models:
        known = sorted({name for run in runs for name in run.scored(split)})
        other = f"these scored {', '.join(known)}" if known else "these scored no such samples"
        if split == "validation":
            other = "run with --validation_fraction=0.2"
        remedy = SCORED_WITH.get(model, other) if known else other
        runs = having(
            runs, lambda run, m=model: run.accuracy(m, split),
            f"{split} scores of the model {model!r}", remedy,
        )  # fmt: skip
    return list(runs)


def with_models(runs: Sequence[Run]) -> list[Run]:
    """Runs that saved their final models."""
    return having(
        runs, lambda run: True if (run.folder / "models.npz").exists() else None,
        "saved models", "run with --save_models",
    )  # fmt: skip


def varying(runs: Sequence[Run], ignore: Sequence[str] = ()) -> list[str]:
    """Names of settings in which runs differ, a method's own only among runs of that method.

    Flags that only say what is measured beside a run are left out.
    """
    names = dict.fromkeys(name for run in runs for name in run.settings)
    bare = {name for run in runs for name in run.hyperparameters}
    differ = []
    for name in names:
        if name in (*ignore, *MEASURING) or (
            name in bare and all(name not in _flag_names(r) for r in runs)
        ):
            continue  # a hyperparameter counts under its full name
        if len({repr(run.settings[name]) for run in runs if name in run.settings}) > 1:
            differ.append(name)
    return differ


def _flag_names(run: Run) -> set[str]:
    return {name for group in run.config["flags"].values() for name in group}


def setting(runs: Sequence[Run], name: str) -> list[Run]:
    """Runs that have a setting.

    Raises:
      InputError: none has it; names the nearest.
    """
    kept = [run for run in runs if name in run.settings]
    if not kept:
        known = varying(runs) or sorted({name for run in runs for name in run.settings})
        bare = [name.partition(".")[2] for name in known if "." in name]
        raise unknown_name("setting", name, {*known, *bare})
    return kept


def shown(value: Any) -> str:
    """A setting's value for people."""
    if isinstance(value, list):
        return ",".join(map(str, value)) or "none"
    return f"{value:g}" if isinstance(value, float) else str(value)


def labels(runs: Sequence[Run]) -> list[str]:
    """A name for each run: its method, then the settings in which runs differ.

    Where these are too many or don't tell runs apart, the name of the comparison's folder.
    """
    differ = [name for name in varying(runs) if name not in (METHOD, *REPEATS)]
    several = len({run.method for run in runs}) > 1

    def label(run: Run) -> str:
        own = [name for name in differ if name in run.settings]
        words = [f"{name.partition('.')[2] or name}={shown(run.settings[name])}" for name in own]
        return ", ".join([run.method, *words] if several or not words else words)

    chosen = [label(run) for run in runs]
    if len(differ) > 3 or len(set(chosen)) < len(chosen):
        chosen = [f"{run.folder.parent.name}/{run.folder.name}" for run in runs]
    if len(set(chosen)) < len(chosen):
        chosen = [str(run.folder) for run in runs]
    return chosen
