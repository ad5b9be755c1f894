"""Tables that compare all algorithms: `python -m tools.measured_tables docs runs/all`.

Takes the finished runs of the presets studies/all_NAME from the folders NAME in the second
argument, and fills the marks in docs/measured.md. Folders that are missing are left out.
"""

import itertools
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

import fedjax_pfl as pfl
from experiments.cli import shell
from experiments.outputs.run_files import write_text
from fedjax_pfl.results.intervals import mean_with_interval
from fedjax_pfl.results.table import Table

SETTINGS = {
    "dirichlet": "Dir(0.1)",
    "practical1": "practical-1",
    "dirichlet_sampled": "Dir(0.1), 100 clients",
    "practical1_sampled": "practical-1, 100 clients",
    "pathological_cifar10": "CIFAR-10, 2 classes",
}
MARKS = ("<!-- all algorithms -->\n", "\n<!-- end of all algorithms -->")
Found = Mapping[str, Mapping[str, pfl.Result]]  # by setting and algorithm


def load(folder: Path) -> dict[str, dict[str, pfl.Result]]:
    """Return the results of the settings in a folder."""
    return {
        name: {part.parent.name: pfl.Result.load(part.parent)
               for part in sorted((folder / name).glob("*/summary.json"))}
        for name in SETTINGS if (folder / name).is_dir()
    }  # fmt: skip


def accuracy(result: pfl.Result) -> str:
    """Return percent after the last round, with half of the 95 % interval over seeds."""
    return mean_with_interval(100 * result.curve()[:, 0, -1])


def worst(result: pfl.Result) -> str:
    return f"{100 * result.summary()['accuracy']['worst_decile']:.2f}"


def in_order(found: Found) -> list[str]:
    """Return the algorithms, the best mean accuracy over the settings first."""
    names = dict.fromkeys(itertools.chain.from_iterable(found.values()))

    def mean(name: str) -> float:
        return float(
            np.mean([own[name].curve()[:, 0, -1] for own in found.values() if name in own])
        )

    return sorted(names, key=mean, reverse=True)


def grid(found: Found, cell: Callable[[pfl.Result], str]) -> Table:
    """Return a row for each algorithm, a column for each setting."""
    body = [
        [f"`{name}`", *(cell(own[name]) if name in own else "-" for own in found.values())]
        for name in in_order(found)
    ]
    return Table.of_cells(["Algorithm", *(SETTINGS[name] for name in found)], body)


def costs(own: Mapping[str, pfl.Result]) -> Table:
    """Return traffic, computation and time of a round, in one setting."""
    base = own["fedavg"].summary()
    gflop = base["computation"]["gflop_per_client_round"]
    body = []
    for name, result in own.items():
        summary = result.summary()
        sent, work = summary["traffic_mb_per_client_round"], summary["computation"]
        time = summary["seconds_per_round"] / base["seconds_per_round"]
        body.append([
            f"`{name}`",
            f"{result.training['learning_rate']:g}",
            f"{sent['up']:.3f}",
            f"{sent['down']:.3f}",
            f"{work['gflop_per_client_round']:.3f}",
            f"{time:.2f}",
            f"{time / (work['gflop_per_client_round'] / gflop):.2f}",
        ])  # fmt: skip
    heading = ["Algorithm", "Rate", "MB up", "MB down", "GFLOP", "Time", "Time for its GFLOP"]
    return Table.of_cells(heading, body)


def tau(a: np.ndarray, b: np.ndarray) -> float:
    """Return Kendall's tau of two lists of scores; ties count half."""
    i, j = np.triu_indices(len(a), 1)
    return float(np.mean(np.sign(a[i] - a[j]) * np.sign(b[i] - b[j])))


def stability(found: Found) -> Table:
    """Return how well orders agree between pairs of seeds, and between mid-run and end."""
    body = []
    for name, own in found.items():
        curves = np.stack([result.curve()[:, 0] for result in own.values()])  # [A, S, E]
        pairs = itertools.combinations(range(curves.shape[1]), 2)
        seeds = np.mean([tau(curves[:, a, -1], curves[:, b, -1]) for a, b in pairs])
        mean = curves.mean(axis=1)
        mean = mean[np.isfinite(mean).all(axis=1)]  # some are scored only at the end
        halves = tau(mean[:, (mean.shape[1] - 1) // 2], mean[:, -1])
        body.append([SETTINGS[name], f"{seeds:.2f}", f"{halves:.2f}"])
    return Table.of_cells(["Setting", "two seeds", "the middle and the end"], body)


def text(found: Found) -> str:
    """Return all tables."""
    first = next(iter(found))
    tables = {
        "Accuracy:": grid(found, accuracy),
        "Worst tenth of the clients:": grid(found, worst),
        "Kendall's tau between the orders of the algorithms:": stability(found),
        f"A client's traffic and computation in a round, {SETTINGS[first]}; the wall time of a "
        "round over FedAvg's, and the same for as many GFLOP:": costs(found[first]),
    }
    return "\n\n".join(f"{title}\n\n{one.to_markdown()}" for title, one in tables.items())


def main(argv: Sequence[str] | None = None) -> int:
    """Update the page in the folder of the first argument."""
    _, docs, runs = sys.argv if argv is None else argv
    found = load(Path(runs))
    if not found:
        raise pfl.InputError(f"{runs} has no folder {', '.join(SETTINGS)}.")
    measured = Path(docs) / "measured.md"
    head, first, rest = measured.read_text(encoding="utf-8").partition(MARKS[0])
    _, last, tail = rest.partition(MARKS[1])
    if not last:
        raise pfl.InputError(f"{measured} has no marks {MARKS[0].strip()}, {MARKS[1].strip()}.")
    write_text(measured, head + first + text(found) + last + tail)
    return 0


if __name__ == "__main__":
    shell.leave(main)
