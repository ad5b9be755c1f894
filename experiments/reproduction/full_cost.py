"""What a table costs at the paper's scale, in GFLOP of local training; nothing is run for it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

import fedjax_pfl as pfl
from fedjax_pfl.engine.costs import step_flops

from ..cli import data_flags, flags
from ..cli.config import ExperimentConfig
from ..figures.runs import read
from .entries import Section
from .planning import Command
from .published import KINDS


class Machine(NamedTuple):
    """GFLOP a second, as `step_flops` counts them, with the CNN of 582,026 parameters."""

    name: str
    key: str
    rate: float
    said: str


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
RATES = "\n".join(f"- {one.name}: {one.rate:,g} GFLOP a second, {one.said}." for one in MACHINES)


@dataclass(frozen=True)
class Cost:
    """Of a table at full scale.

    Attributes:
      gflop: local training of all runs, as far as it can be counted.
      runs: how many there are.
      measured: for how many of them steps beyond plain local training were counted in a run at
        hand; the others count as plain.
      unknown: runs that can't be counted.
    """

    gflop: float
    runs: int
    measured: int
    unknown: int

    @property
    def hours(self) -> tuple[float, ...]:
        """On each of `MACHINES`."""
        return tuple(self.gflop / machine.rate / 3600 for machine in MACHINES)


def of_table(asked: Command, sections: Sequence[Section]) -> Cost:
    """The cost of all runs of the table at full scale, with its finished runs' kinds of steps."""
    whole = Command(asked.table, "full", (), asked.output, {}, asked.reading)
    ran = {one.column.name: one.folders for one in sections}
    done: set[Path] = set()
    gflop, measured, unknown = 0.0, 0, 0
    for column in asked.table.column:
        for cell in whole.cells(column):
            if cell.folder in done:
                continue
            done.add(cell.folder)
            plain = training(tuple(word for word in cell.words if "--output_dir" not in word))
            if plain is None:
                unknown += 1
                continue
            times = passes(ran.get(column.name, {}), cell.line.name)
            measured += times is not None
            gflop += plain * (1.0 if times is None else times)
    return Cost(gflop, len(done), measured, unknown)


def training(words: Sequence[str]) -> float | None:
    """GFLOP of a run's plain local training: its epochs on its clients, all rounds and seeds.

    None where the data set's facts or the network's FLOPs aren't known.
    """
    args = flags.parse(["run", *words])
    named = {"seeds": args.num_seeds, "rounds": args.rounds, "participation": args.participation}
    settled = tuple(word for word in words if not word.startswith(("--set=", "--algorithms=")))
    found = _round(settled)
    if found is None:
        return None
    return found * named["seeds"] * named["rounds"] * float(named["participation"] or 1.0) / 1e9


@lru_cache(maxsize=256)  # rows of a column share it
def _round(words: tuple[str, ...]) -> float | None:
    """FLOPs of one round of all clients."""
    args = flags.parse(["run", *words])
    kind = KINDS.get(args.dataset)
    if kind is None:
        return None
    rng = np.random.default_rng(0)
    parts = []
    for counts in (kind.train, kind.test):
        labels = rng.permutation(np.repeat(np.arange(len(counts)), counts))
        blank = np.zeros((), np.uint8 if kind.vocab_size is None else np.int32)
        parts += [np.broadcast_to(blank, (len(labels), *kind.shape)), labels]
    more = {"num_classes": len(kind.train), "vocab_size": kind.vocab_size}
    dataset = pfl.dataset_from_arrays(args.dataset, *parts, **more)
    each = _step(args, kind)
    count = steps(args, held(data_flags.make_partition(args, dataset))).sum()
    return None if each is None else float(count) * each


def held(partition: pfl.Partition) -> np.ndarray:
    """Training samples of each client, [N]."""
    return np.array([len(own) for own in partition.train.lists()])


def steps(args: ExperimentConfig, sizes: np.ndarray) -> np.ndarray:
    """Local steps of each client in a round."""
    if args.local_steps is not None:
        return np.full(len(sizes), args.local_steps)
    batches = sizes // args.batch_size if args.drop_last else -(-sizes // args.batch_size)
    return args.local_epochs * batches


def _step(args: ExperimentConfig, kind) -> float | None:
    """FLOPs of one step; a few blank samples are enough for it."""
    count, classes = args.batch_size, len(kind.train)
    size = 2 * count + 2
    blank = np.zeros((size, *kind.shape), np.uint8 if kind.vocab_size is None else np.int32)
    labels = np.arange(size) % classes
    dataset = pfl.dataset_from_arrays(
        args.dataset, blank, labels, num_classes=classes, vocab_size=kind.vocab_size
    )
    order = np.arange(size)
    partition = pfl.Partition.from_lists(
        train=[order[:count], order[count:-2]], test=[order[-2:-1], order[-1:]]
    )
    options: Mapping = {
        name: args.federation_options()[name]
        for name in ("model_options", "batch_size", "momentum", "weight_decay", "batch_norm")
    }
    return step_flops(pfl.federate(dataset, partition, args.model, devices=1, **options))


def passes(folders: Mapping[str, Path], row: str) -> float | None:
    """GFLOP of a finished run as multiples of its plain local training; None without one."""
    folder = folders.get(row)
    if folder is None or not (folder / "summary.json").exists():
        return None
    run = read(folder)
    flops = run.flops()
    step = run.result.flops_per_step
    if flops is None or not step or not (folder.parent / "partition.npz").exists():
        return None
    args = flags.parse(["run"])
    names = ("local_steps", "local_epochs", "batch_size", "drop_last")
    args = args.replace(**{name: run.flags[name] for name in names if name in run.flags})
    own = steps(args, held(pfl.Partition.load(folder.parent / "partition.npz")))
    plain = (run.record("participated") * own).sum() * step
    return float(flops.sum() / plain) if plain else None
