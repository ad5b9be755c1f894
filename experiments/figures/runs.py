"""Finished runs as figures see them: settings, scores, records and matrices by name.

`experiments.outputs.run_files` describes the files of a run's folder.
"""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

import fedjax_pfl as pfl
from fedjax_pfl.results.notes import row_remarks
from fedjax_pfl.results.result_files import PLAIN, damaged
from fedjax_pfl.utils.errors import InputError, shown

from ..cli import flag_roles

# Flags that no setting of a run is compared by: places, execution, and what is kept.
UNCOMPARED = (
    flag_roles.NEUTRAL | flag_roles.COMPARED | flag_roles.RECORDED | flag_roles.EXECUTION
    | {"partition_file", "metrics", "import_file"}
)  # fmt: skip
CONFIG, SUMMARY = "config.json", "summary.json"
ALGORITHM, REVISION = "algorithm", "revision"
CODE = "code"  # of the user's own, file by file
SCALING = "input_scaling"  # of the same samples


@dataclass(frozen=True, eq=False)
class Run:
    """One algorithm's folder of a finished run; its result is read when it is asked for.

    Attributes:
      folder: with `summary.json` in it.
      config: content of its `config.json`.
      summary: content of its `summary.json`.
      metric: name of the measure that is shown, or None for its task's main metric.
    """

    folder: Path
    config: dict[str, Any]
    summary: dict[str, Any]
    metric: str | None = None

    @cached_property
    def result(self) -> pfl.Result:
        """All measurements.

        Raises:
          InputError: they can't be read, or are another run's.
        """
        result = pfl.Result.load(self.folder)
        for name, value in (("algorithm", result.algorithm), ("seeds", list(result.seeds))):
            if self.config[name] != value:
                text = f"{name} is {shown(value)} there and {shown(self.config[name])} in {CONFIG}"
                raise damaged(self.folder / PLAIN, text)
        return result

    @property
    def measure(self) -> pfl.models.Measure:
        """The measure that is shown."""
        return self.result.measure(self.metric)

    @property
    def algorithm(self) -> str:
        return self.config["algorithm"]

    @property
    def hyperparameters(self) -> dict[str, Any]:
        return self.config["hyperparameters"]

    @property
    def training(self) -> dict[str, Any]:
        """The algorithm's own options of local training, which replace the flags' values."""
        return self.config.get("training", {})

    @property
    def seeds(self) -> list[int]:
        return self.config["seeds"]

    @property
    def num_clients(self) -> int:
        return self.result.num_clients

    @property
    def remarks(self) -> tuple[str, ...]:
        """Sentences on the run for the notes below a table."""
        return tuple(row_remarks(self.result))

    @cached_property
    def flags(self) -> dict[str, Any]:
        """Flags by name, with the resolved options of the partition rule and the algorithm's own
        local training.

        Flags of places and the options of other rules are left out.
        """
        groups = self.config["flags"]
        flags = {name: value for group in groups.values() for name, value in group.items()}
        drawn = self.config["partition"]["options"]
        flags |= {name: drawn.get(name) for name in groups["rule"]}
        flags |= {"num_clients": self.num_clients, "partition": self.config["partition"]["rule"]}
        flags |= self.training
        alien = {name for name in groups["rule"] if flags[name] is None}
        return {k: v for k, v in flags.items() if k not in UNCOMPARED and k not in alien}

    @cached_property
    def settings(self) -> dict[str, Any]:
        """Every setting by name: "algorithm", "revision", "code", flags, ALGORITHM.HYPERPARAMETER,
        and a hyperparameter's bare name where no flag has it.
        """
        own = {f"{self.algorithm}.{name}": value for name, value in self.hyperparameters.items()}
        known = {name: self.config.get(name) for name in (REVISION, CODE)}
        return {ALGORITHM: self.algorithm} | known | self.hyperparameters | self.flags | own

    def scored(self, split: str = "test") -> list[str]:
        """Return names of the models that were scored."""
        end = f"/{split}/{self.measure.name}"
        return [name.removesuffix(end) for name in self.result.scores if name.endswith(end)]

    def values(self, model: str = "personalized", split: str = "test") -> np.ndarray:
        """Return the measure, [S, E, N]; accuracies are fractions; NaN for clients without a score.

        Raises:
          InputError: it wasn't scored.
        """
        if model not in self.scored(split):
            raise InputError(f"{self.folder} has no {split} scores of the model {model!r}.")
        return self.result.values(model, split, self.measure.name)[:, 0]

    @cached_property
    def records(self) -> dict[str, np.ndarray]:
        """Records of the clients by round, their traffic and computation, [S, T, N]."""
        result, flops = self.result, self.result.flops()
        records = {name: values[:, 0] for name, values in result.clients.items()}
        records |= {f"traffic/{way}_bytes": sent[:, 0] for way, sent in result.traffic().items()}
        return records if flops is None else records | {"computation/flops": flops[:, 0]}

    def recorded(self, name: str) -> np.ndarray:
        """Return a record, [S, T, N]; NaN for clients that took no part in the round."""
        values = self.records[name].astype(float)
        here = self.records["participated"]
        return values if name == "participated" else np.where(here, values, np.nan)

    def traffic(self, way: str) -> np.ndarray:
        """Return the bytes sent ("up") or received ("down") by each client, [S, T, N]."""
        return self.records[f"traffic/{way}_bytes"]

    def flops(self) -> np.ndarray | None:
        """Return the FLOPs of local training, [S, T, N]; None for older runs."""
        return self.records.get("computation/flops")

    def matrix(self, name: str) -> np.ndarray:
        """Return recorded matrices [S, Q, G, N, N] of G groups of layers (1 for the whole model).

        A single server's weights, one row for all receivers, are shown N times.

        Raises:
          InputError: the algorithm records no such matrix.
        """
        if name not in self.result.matrices:
            raise InputError(f"{self.folder} has no matrix {name!r}.")
        value = self.result.matrices[name][:, 0]
        value = value[:, :, None] if value.ndim == 4 else value
        return np.broadcast_to(value, (*value.shape[:3], value.shape[-1], value.shape[-1]))

    def blocks(self, count: int) -> list[str]:
        """Return names of the G groups of layers of a matrix."""
        names = self.result.blocks
        if count == len(names):
            return list(names)
        return {1: ["model"], 2: ["body", "head"]}.get(count, [f"group {g}" for g in range(count)])

    @cached_property
    def data(self) -> dict[str, Any]:
        """The identity of its data: data set, partition, and number of clients."""
        dataset = self.config.get("dataset", {})
        known = {f"dataset {name}": dataset[name] for name in dataset if name != SCALING}
        for name, value in self.summary.items():
            if name.startswith(("dataset", "partition_")):
                known[name] = value
        return known | {"num_clients": self.num_clients}

    @property
    def data_name(self) -> str:
        """The same in words: "digits 5e6f7a8b, dirichlet 1a2b3c4d, 20 clients"."""
        held = self.data.get("dataset", "data set"), self.data.get("dataset_hash", "")
        dealt = self.config["partition"]["rule"], self.data.get("partition_hash", "")
        words = [f"{name} {str(mark)[:8]}".strip() for name, mark in (held, dealt)]
        return ", ".join([*words, f"{self.num_clients} clients"])


def same_data(run: Run, other: Run) -> bool:
    """Return whether both have the same data set and partition, as far as both record it."""
    common = run.data.keys() & other.data.keys()
    return all(run.data[name] == other.data[name] for name in common)
