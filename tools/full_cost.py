"""Cost of a table at the paper's scale, in GFLOP of local training, without running it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

import fedjax_pfl as pfl
from experiments.cli import data_flags, flags
from experiments.cli.config import ExperimentConfig
from experiments.reproduction import datasets
from experiments.reproduction.planning import Cell, Request
from fedjax_pfl.engine.costs import step_flops


class Machine(NamedTuple):
    """GFLOP a second, as `step_flops` counts them, with the CNN of 582,026 parameters."""

    name: str
    key: str
    rate: float
    source: str


MACHINES = (
    Machine("two cores", "two_cores", 110.0, "measured with a small CNN, Intel Xeon with AVX-512"),
    Machine("one v5e, planned", "v5e", 6600.0,
            "what the compiler's estimate promises for 20 clients of this CNN in minibatches of "
            "10: 29.2 rounds of 45 steps a second, scoring and server included (no TPU was "
            "measured)"),
    Machine("one H100, at least", "h100", 67_000.0,
            "its peak in float32 by NVIDIA's data sheet (SXM): nothing here estimates a GPU's "
            "time, and minibatches this small reach a fraction of it"),
)  # fmt: skip
RATES = "\n".join(f"- {one.name}: {one.rate:,g} GFLOP a second, {one.source}." for one in MACHINES)


@dataclass(frozen=True)
class Cost:
    """Cost of a table at full scale.

    Attributes:
      gflop: plain local training of all runs, as far as it can be counted.
      runs: how many there are.
      unknown: runs that can't be counted.
    """

    gflop: float
    runs: int
    unknown: int

    @property
    def hours(self) -> tuple[float, ...]:
        """On each of `MACHINES`."""
        return tuple(self.gflop / machine.rate / 3600 for machine in MACHINES)


def of_table(request: Request) -> Cost:
    """Return the cost of all runs of the table at full scale."""
    full = Request(request.table, "full", (), request.output, {}, request.reading)
    cells: dict[Path, Cell] = {}  # rows may share a run
    for column in request.table.column:
        for cell in full.cells(column):
            cells.setdefault(cell.folder, cell)
    gflop, unknown = 0.0, 0
    for cell in cells.values():
        plain = training(tuple(word for word in cell.words if "--output_dir" not in word))
        unknown += plain is None
        gflop += plain or 0.0
    return Cost(gflop, len(cells), unknown)


def training(words: Sequence[str]) -> float | None:
    """Return the GFLOP of a run's plain local training in all rounds and seeds.

    None where the data set's facts or the network's FLOPs aren't known.
    """
    args = flags.parse(["run", *words])
    shared = tuple(word for word in words if not word.startswith(("--set=", "--algorithms=")))
    flops = _round(shared)
    if flops is None:
        return None
    return flops * args.num_seeds * args.rounds * (args.participation or 1.0) / 1e9


@lru_cache(maxsize=256)  # rows of a column share it
def _round(words: tuple[str, ...]) -> float | None:
    """Return the FLOPs of one round of all clients."""
    args = flags.parse(["run", *words])
    if args.dataset not in datasets.KINDS:
        return None
    partition = data_flags.make_partition(args, datasets.blank(args.dataset))
    each = _step(args)
    return None if each is None else float(steps(args, partition.sizes()).sum()) * each


def steps(args: ExperimentConfig, sizes: np.ndarray) -> np.ndarray:
    """Return the local steps of each client in a round."""
    if args.local_steps is not None:
        return np.full(len(sizes), args.local_steps)
    batches = sizes // args.batch_size if args.drop_last else -(-sizes // args.batch_size)
    return args.local_epochs * batches


def _step(args: ExperimentConfig) -> float | None:
    """Return the FLOPs of one step, of two clients with one minibatch each."""
    count = args.batch_size
    dataset = datasets.blank(args.dataset, 2 * count, 2)
    order = np.arange(2 * count)
    partition = pfl.Partition.from_lists(
        train=[order[:count], order[count:]],
        test=[[dataset.num_train], [dataset.num_train + 1]],
    )
    options: Mapping = {
        name: args.federation_options()[name]
        for name in ("model_options", "batch_size", "momentum", "weight_decay", "batch_norm")
    }
    return step_flops(pfl.federate(dataset, partition, args.model, devices=1, **options))
