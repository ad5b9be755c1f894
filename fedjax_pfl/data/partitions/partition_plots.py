"""Pictures of partitions: clients' samples, sizes, the effect of alpha, renamed labels.

Every function returns a `matplotlib.figure.Figure`, which needs no display and no global state;
`figure.savefig(path)` writes it. Clients go from left to right, classes from top to bottom.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedjax_pfl.data.partitions.statistics import SPLITS, partition_statistics
from fedjax_pfl.utils.errors import InputError, require, shown
from fedjax_pfl.utils.plotting import COLOURS, canvas, client_ticks, heat, ticks

if TYPE_CHECKING:
    from fedjax_pfl.data.partitions.partition import Partition

_THOUSANDS = "{x:,.0f}"
_HATCHES = {"train": "", "test": "///", "validation": "..."}  # distinct in grey, too
_SINGLE_BARS = 400  # above, bars would be narrower than two pixels: one outline is drawn


def heatmap(
    partition: "Partition",
    labels: Any,
    num_classes: int,
    title: str | None = None,
    class_names: Sequence[str] | None = None,
) -> Figure:
    """Plot training samples by client and class, with the clients' sizes above.

    Labels are those that the clients see. The colour scale is that of square roots, so that a
    client's few samples of a class are visible beside many of another.

    Args:
      partition: of the pool that the labels are of.
      labels: labels of the pool.
      num_classes: C.
      title: of the figure; the rule's name by default.
      class_names: C names; 0..C-1 by default.
    """
    counts = partition.class_counts(labels, num_classes)
    n = len(counts)
    width = float(np.clip(3.2 + 0.2 * n, 6.0, 14.0))
    height = float(np.clip(2.6 + 0.2 * num_classes, 4.0, 9.0))
    figure = canvas(width, height)
    bars, lower = figure.subplots(2, 1, sharex=True, height_ratios=(1.3, height - 2.0))
    _bars(bars, partition)
    bars.tick_params(axis="x", length=0, labelbottom=False)
    image = heat(lower, counts.T, PowerNorm(0.5, vmin=0, vmax=max(counts.max(), 1)))
    lower.set(xlabel="client", ylabel="label" if partition.label_map is not None else "class")
    client_ticks(lower.xaxis, n, 3.0 * width, partition.names)
    ticks(lower.yaxis, num_classes, 4.5 * (height - 2.0), class_names)
    _colorbar(figure, image, lower)
    figure.suptitle(title or f"Partition {partition.rule}, {n} clients", fontsize=11, wrap=True)
    return figure


def size_bars(partition: "Partition", title: str | None = None) -> Figure:
    """Plot each client's samples as stacked bars of its splits, and their mean.

    Args:
      partition: any.
      title: of the figure; the rule's name by default.
    """
    n = partition.num_clients
    figure = canvas(float(np.clip(3.2 + 0.2 * n, 6.0, 14.0)), 3.2)
    axes = figure.add_subplot()
    _bars(axes, partition)
    mean = np.sum([partition.sizes(split) for split in SPLITS], axis=0).mean()
    axes.axhline(mean, color="black", linewidth=1, linestyle="--")
    axes.set(xlabel="client")
    client_ticks(axes.xaxis, n, 3.0 * figure.get_figwidth(), partition.names)
    name = title or f"Partition {partition.rule}, {n} clients"
    figure.suptitle(f"{name} (dashed: mean, {mean:,.1f})", fontsize=11, wrap=True)
    return figure


def comparison(
    partitions: Mapping[str, "Partition"],
    labels: Any,
    num_classes: int,
    title: str | None = None,
    class_names: Sequence[str] | None = None,
) -> Figure:
    """Plot heat maps of several partitions in one row, on one colour scale.

    Args:
      partitions: by the title of their picture, such as "alpha=0.1".
      labels: labels of the pool, the same for all.
      num_classes: C.
      title: of the figure.
      class_names: C names; 0..C-1 by default.
    """
    require(len(partitions) > 0, "partitions", partitions, "at least one")
    tables = [one.class_counts(labels, num_classes) for one in partitions.values()]
    norm = PowerNorm(0.5, vmin=0, vmax=max(int(table.max()) for table in tables) or 1)
    most = max(map(len, tables))
    side = float(np.clip(1.2 + 0.06 * most, 2.6, 4.5))
    height = float(np.clip(2.7 + 0.14 * num_classes, 3.6, 7.0))
    figure = canvas(max(side * len(tables) + 1.4, 5.0), height)
    row = figure.subplots(1, len(tables), sharey=True, squeeze=False)[0]
    for axes, (name, partition), table in zip(row, partitions.items(), tables, strict=True):
        image = heat(axes, table.T, norm)
        facts = partition_statistics(partition, labels, num_classes)
        classes, effective = facts["classes_per_client"], facts["effective_classes"]
        apart, sizes = facts["total_variation"]["mean"], facts["sizes"]["train"]
        range_ = " to ".join(dict.fromkeys(f"{sizes[end]:,}" for end in ("min", "max")))
        axes.set_title(name, fontsize=10)
        axes.set_xlabel(
            f"client\n{_number(classes['mean'])} classes, {_number(effective['mean'])} effective\n"
            f"total variation {_number(apart, 2)}\n{range_} samples",
            fontsize=8,
        )
        ticks(axes.xaxis, len(table), 3.2 * side)
    row[0].set_ylabel("class")
    ticks(row[0].yaxis, num_classes, 4.5 * (height - 1.8), class_names)
    _colorbar(figure, image, row)
    figure.suptitle(title or "Training samples by client and class", fontsize=11, wrap=True)
    return figure


def label_map(
    partition: "Partition", title: str | None = None, class_names: Sequence[str] | None = None
) -> Figure:
    """Plot the label that each client sees for a class; unchanged labels are white.

    Args:
      partition: with a label map.
      title: of the figure.
      class_names: C names; 0..C-1 by default.
    """
    table = partition.label_map
    if table is None:
        raise InputError(f"partition must be one with a label map, got {shown(partition.rule)}.")
    n, num_classes = table.shape
    width = float(np.clip(2.2 + 0.3 * n, 5.0, 14.0))
    height = float(np.clip(1.8 + 0.24 * num_classes, 3.0, 9.0))
    figure = canvas(width, height)
    axes = figure.add_subplot()
    same = table == np.arange(num_classes)
    image = axes.imshow(
        np.ma.masked_array(table, same).T, cmap="cividis", aspect="auto", interpolation="nearest",
        vmin=0, vmax=max(num_classes - 1, 1),
    )  # fmt: skip
    if n * num_classes <= 2000:
        for (client, c), label in np.ndenumerate(table):
            dark = not same[client, c] and label < 0.55 * num_classes
            axes.text(
                client, c, label, ha="center", va="center", fontsize=8,
                color="0.55" if same[client, c] else "white" if dark else "black",
            )  # fmt: skip
    axes.set(xlabel="client", ylabel="class")
    ticks(axes.xaxis, n, 3.0 * width)
    ticks(axes.yaxis, num_classes, 4.5 * height, class_names)
    figure.colorbar(image, ax=axes, label="label seen (white: the class itself)", pad=0.02)
    figure.suptitle(title or f"Labels of partition {partition.rule}", fontsize=11, wrap=True)
    return figure


def _bars(axes, partition: "Partition") -> None:
    bottom = np.zeros(partition.num_clients)
    clients = np.arange(partition.num_clients)
    for k, split in enumerate(SPLITS):
        sizes = partition.sizes(split)
        if k == 0 or sizes.any():
            look = {"color": COLOURS[k], "label": split, "hatch": _HATCHES[split]}
            look |= {"edgecolor": "white", "linewidth": 0}
            if len(clients) > _SINGLE_BARS:
                edges = np.arange(len(clients) + 1) - 0.5
                axes.stairs(bottom + sizes, edges, baseline=bottom, fill=True, **look)
            else:
                axes.bar(clients, sizes, bottom=bottom, width=0.8, **look)
            bottom = bottom + sizes
    axes.set_ylabel("samples")
    axes.yaxis.get_major_locator().set_params(nbins=4, integer=True)
    axes.yaxis.set_major_formatter(_THOUSANDS)
    axes.set_xlim(-0.5, partition.num_clients - 0.5)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(
        loc="lower right",
        bbox_to_anchor=(1.0, 1.0),
        ncols=3,
        frameon=False,
        fontsize=8,
        borderpad=0,
    )


def _colorbar(figure: Figure, image, axes) -> None:
    label = "training samples (white: none)"
    few = MaxNLocator(5, integer=True)
    figure.colorbar(image, ax=axes, label=label, pad=0.02, aspect=25, format=_THOUSANDS, ticks=few)


def _number(value: float | None, digits: int = 1) -> str:
    return "-" if value is None else f"{value:.{digits}f}"
