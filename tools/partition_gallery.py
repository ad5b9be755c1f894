"""Pictures of the papers' partitions: `python -m tools.partition_gallery docs/images`.

Made from presets and blank samples with the published class counts, so no data are needed.
"""

from collections.abc import Sequence

import matplotlib.figure

import fedjax_pfl as pfl
from experiments.cli import data_flags, shell
from experiments.outputs.run_files import atomic_write
from experiments.reproduction.datasets import blank
from fedjax_pfl.data.partitions import partition_plots as plots
from tools import arguments, settings_table

# By file: the title, and presets by the titles of their pictures.
ROWS = {
    "partition_feddwa": (
        "FedDWA on CIFAR-10's class counts, 20 clients",
        {
            "pathological, code": "feddwa/table1_pathological_cifar10",
            "pathological, text": "feddwa/table1_pathological_text_cifar10",
            "practical-1, code": "feddwa/table1_practical1_cifar10",
            "practical-1, text": "feddwa/table1_practical1_text_cifar10",
            "practical-2, Dir(0.1)": "feddwa/table3_practical2_cifar10",
        },
    ),
    "partition_waffle": (
        "WAFFLE on MNIST's class counts, 10 agents",
        {
            "A": "waffle/table1_mnist_a",
            "B": "waffle/table1_mnist_b",
            "C": "waffle/table1_mnist_c",
            "Table 4, labels C, sizes B": "waffle/table4_labels_c_sizes_b",
        },
    ),
    "partition_cwfedavg": (
        "cwFedAVG on CIFAR-10's class counts, 20 clients",
        {
            "pathological": "cwfedavg/table1_pathological_cifar10",
            "practical, Dir(0.1)": "cwfedavg/table1_practical_cifar10",
        },
    ),
    "partition_spfl": (
        "SPFL and PLGA on CIFAR-10's class counts, 10 clients",
        {"IID": "spfl/table1_iid_cifar10", "non-IID": "spfl/table1_noniid_cifar10"},
    ),
    "partition_pfedla": (
        "pFedLA on CIFAR-10's class counts",
        {
            "non-IID_1": "pfedla/table1_cifar10_10",
            "non-IID_2": "pfedla/table2_cifar10_10",
            "Figure 5": "pfedla/figure5_cifar10",
            "Figure 6": "pfedla/figure6_cifar10",
        },
    ),
}
ALPHAS = (0.01, 0.1, 1.0, 10.0)
SWAPPED = "waffle/table1_mnist_a_star"
DPI = 80  # a page is not wider


def figures() -> dict[str, matplotlib.figure.Figure]:
    """Return the pictures by file name."""
    drawn = {}
    for name, (title, presets) in ROWS.items():
        dealt = {above: _deal(preset) for above, preset in presets.items()}
        drawn[name] = _row(dealt, title)
    rule = {
        f"alpha={alpha:g}": _deal("cwfedavg/table1_practical_cifar10", f"--alpha={alpha}")
        for alpha in ALPHAS
    }
    drawn["partition_alphas"] = _row(
        rule, "Dir(alpha) per class over 20 clients, CIFAR-10's counts"
    )
    names = "dirichlet", "dirichlet_uncapped", "dirichlet_per_client"
    dataset = blank("cifar10")
    rules = {rule: pfl.make_partition(rule, dataset, 20, 0, alpha=0.1) for rule in names}
    drawn["partition_dirichlets"] = _row(
        {rule: (dataset, partition) for rule, partition in rules.items()},
        "Three rules called Dir(0.1), 20 clients, CIFAR-10's counts",
    )
    swapped = _deal(SWAPPED)[1]
    drawn["label_map_waffle"] = plots.label_map(swapped, "WAFFLE's A*: labels that agents see")
    return drawn


def _deal(name: str, *words: str) -> tuple[pfl.Dataset, pfl.Partition]:
    args = settings_table.read(name, *words).args
    dataset = blank(args.dataset)
    return dataset, data_flags.make_partition(args, dataset)


def _row(dealt: dict[str, tuple[pfl.Dataset, pfl.Partition]], title: str):
    dataset = next(iter(dealt.values()))[0]
    partitions = {above: partition for above, (_, partition) in dealt.items()}
    return plots.comparison(partitions, dataset.labels, dataset.num_classes, title)


def main(argv: Sequence[str] | None = None) -> int:
    """Write all pictures into a folder."""
    args = arguments.parse("partition_gallery", __doc__, argv, ["folder"])
    for name, figure in figures().items():
        with atomic_write(args.folder / f"{name}.png") as part:
            figure.savefig(part, format="png", dpi=DPI)
    return 0


if __name__ == "__main__":
    shell.leave(main)
