"""pFedLA (CVPR 2022): layer-wise weights of clients, by round, client and layer."""

from collections.abc import Sequence

import numpy as np
from matplotlib.colors import PowerNorm
from matplotlib.ticker import FixedLocator

from ..outputs import looks
from . import drawing
from .drawing import Drawing, figure, long_form, of_run
from .matrices import (
    block_rows,
    check_client,
    rounds_kept,
    seed_row,
    square_clients,
    weight_numbers,
)
from .runs import Run
from .scores import curve
from .selection import labels, with_matrix
from .settings import TRAFFIC, against_setting

COLOURED = 12  # senders that have a colour

figure(
    "pfedla/retained", "accuracy and traffic against retained layers (pFedLA Table 3)",
    against_setting, x="retained", group="dataset", record=TRAFFIC,
)  # fmt: skip


@figure("pfedla/layerwise", "a client's accuracy and own weights, run by run (pFedLA Fig. 1)")
def layerwise(
    runs: Sequence[Run], *, client: int = 0, matrix: str = "alpha", rounds: str = "last"
) -> Drawing:
    """Accuracy of one client by round, and beside it the weights it gives its own layers.

    Meant for a run with a weight for each layer beside one with a single weight for all layers,
    whose line is flat.

    Args:
      client: the receiver.
      matrix: name of a recorded matrix.
      rounds: the recorded round of the weights.
    """
    runs = with_matrix(runs, matrix)
    check_client(runs, client)
    names = labels(runs)
    chart = drawing.canvas(8.4, 3.8)
    left, right = chart.subplots(1, 2)
    lines, table, shown, numbers = [], [], [], set()
    styles = looks.numbers([run.algorithm for run in runs])
    for k, run, name in zip(styles, runs, names, strict=True):
        values = curve(run, np.array([client]), "personalized", "test")
        lines.append(drawing.band(left, run.eval_rounds, values, k, name))
        q = rounds_kept(run, rounds)[0]
        own = run.matrix(matrix)[:, q, :, client, client].astype(float)  # [S, G]
        blocks = run.result.blocks if own.shape[1] == 1 else run.blocks(own.shape[1])
        own = np.broadcast_to(own, (len(own), len(blocks)))
        shown += [block for block in blocks if block not in shown]
        look = {"marker": drawing.marker(k), "markersize": 5}
        drawing.band(right, [shown.index(block) for block in blocks], own, k, **look)
        number = int(run.matrix_rounds[q])
        numbers.add(number)
        places = {"seed": run.seeds, "round": [number], "block": blocks, "receiver": [client]}
        places["sender"] = [client]
        table.append(long_form({"weight": own}, places, **of_run(run, name)))
    drawing.tidy(left, ylabel=f"accuracy of client {client}, %")
    drawing.round_axis(left)
    right.set_xticks(range(len(shown)), shown, rotation=30 if len(shown) > 5 else 0)
    which = f"round {numbers.pop()}" if len(numbers) == 1 else f"{rounds} round"
    drawing.tidy(right, xlabel="layer", ylabel=f"own weight of client {client}, {which}")
    right.set_ylim(bottom=0)
    drawing.legend(chart, lines)
    seeds = drawing.over_seeds(runs)
    drawing.title(chart, f"Client {client}{seeds}")
    return Drawing.of(chart, table)


@figure("pfedla/evolution", "a client's weights by round and layer (pFedLA Fig. 5)")
def evolution(
    runs: Sequence[Run], *, client: int = 0, matrix: str = "alpha", block: str = ""
) -> Drawing:
    """Weights that one client gives every client, at the recorded rounds; a panel for each layer.

    Its own is black. Of many others those with the largest weights have a colour.

    Args:
      client: the receiver.
      matrix: name of a recorded matrix.
      block: names of layers; all by default.
    """
    runs = with_matrix(runs, matrix)
    check_client(runs, client)
    panels = []
    for run, name in zip(runs, labels(runs), strict=True):
        weights = run.matrix(matrix)[..., client, :].astype(float)  # [S, Q, G, N]
        for g in block_rows(run, weights.shape[2], block):
            panels.append((run, name, run.blocks(weights.shape[2])[g], weights[:, :, g]))
    most = max(run.num_clients for run in runs)
    total = sum(np.pad(w.mean(axis=(0, 1)), (0, most - w.shape[-1])) for *_, w in panels)
    others = [int(j) for j in np.argsort(-total, kind="stable") if j != client]
    # Every seventh style is black, which is the client itself.
    colours = {j: k + k // 6 for k, j in enumerate(sorted(others[:COLOURED]))}
    chart, grid = drawing.panels(len(panels), 3.3, 2.9, sharey=True)
    lines, table = {}, []
    for axes, (run, name, layer, weights) in zip(grid, panels, strict=True):
        for j in range(weights.shape[-1]):
            value, rounds = weights[:, :, j], run.matrix_rounds
            if j == client:
                look = {"color": "black", "linewidth": 2.2, "zorder": 3}
                lines["itself"] = drawing.band(axes, rounds, value, 0, **look)
            elif j in colours:
                lines[j] = drawing.band(axes, rounds, value, colours[j])
            else:
                lines["another"] = drawing.band(axes, rounds, value, None)
        places = {"seed": run.seeds, "round": run.matrix_rounds, "block": [layer]}
        places |= {"receiver": [client], "sender": range(weights.shape[-1])}
        table.append(long_form({"weight": weights}, places, **of_run(run, name)))
        axes.set_title(f"{name}: {layer}" if len(runs) > 1 else layer, fontsize=10)
        drawing.tidy(axes, ylabel="weight (scale of roots)" if drawing.leftmost(axes) else "")
        drawing.round_axis(axes)
    # All axes share it; roots, since others' weights are small compared to the client's own.
    grid[0].set_yscale("function", functions=(lambda y: np.sqrt(np.maximum(y, 0)), np.square))
    top = max(float(np.nanmax(weights)) for *_, weights in panels)
    grid[0].set_ylim(0, 1.05 * top)
    grid[0].yaxis.set_major_locator(FixedLocator([0, 0.01, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1]))
    known = [key for key in ("itself", *sorted(colours), "another") if key in lines]
    roles = {} if len(runs) > 1 else dict(enumerate(_roles(runs[0])))
    names = [f"client {key}{roles.get(key, '')}" if key in colours else key for key in known]
    drawing.legend(chart, [lines[key] for key in known], "weight of", names)
    seeds = drawing.over_seeds(runs)
    drawing.title(chart, f"{matrix} weights of client {client}{seeds}")
    return Drawing.of(chart, table)


def _roles(run: Run) -> list[str]:
    """Each client's role in the partition, such as ", twin"; [] where there are none."""
    return [f", {role}" for role in run.config["partition"]["options"].get("roles", ())]


@figure("pfedla/matrices", "weights between all clients, layer by layer (pFedLA Fig. 6)")
def matrices(
    runs: Sequence[Run],
    *,
    matrix: str = "alpha",
    block: str = "",
    rounds: str = "last",
    seed: int | None = None,
) -> Drawing:
    """Heat maps receiver x sender, a row for each run and round, a column for each layer.

    One colour scale, that of square roots, so that the others' weights are visible beside a
    client's own.

    Args:
      matrix: name of a recorded matrix.
      block: names of layers; all by default.
      rounds: some of the recorded ones; the last by default.
      seed: the first by default.
    """
    runs = with_matrix(runs, matrix)
    rows = []
    for run, name in zip(runs, labels(runs), strict=True):
        for q in rounds_kept(run, rounds):
            s = seed_row(run, seed)
            weights = run.matrix(matrix)[s, q].astype(float)
            chosen = block_rows(run, len(weights), block)
            layers = [run.blocks(len(weights))[g] for g in chosen]
            rows.append(
                (run, name, run.seeds[s], int(run.matrix_rounds[q]), layers, weights[chosen])
            )
    columns = max(len(layers) for *_, layers, _ in rows)
    chart = drawing.canvas(2.5 * columns + 1.3, 2.7 * len(rows) + 0.3)
    grid = chart.subplots(len(rows), columns, squeeze=False)
    norm = PowerNorm(0.5, vmin=0.0, vmax=max(float(np.nanmax(w)) for *_, w in rows) or 1.0)
    table, used = [], []
    for line, (run, name, seed_shown, number, layers, weights) in zip(grid, rows, strict=True):
        for axes in line[len(layers) :]:
            axes.remove()
        for axes, layer, values in zip(line, layers, weights, strict=False):
            image = drawing.heat(axes, values, norm)
            used.append(axes)
            square_clients(axes, run)
            axes.set_title(layer, fontsize=10)
            axes.set_xlabel("sender")
            table.append(weight_numbers(run, name, seed_shown, number, values, layer))
        line[0].set_ylabel(f"{name}, round {number}\nreceiver")
    drawing.colorbar(chart, image, used, "weight (white: 0)")
    return Drawing.of(chart, table)


@figure("pfedla/layers", "weights of all layers for one client (pFedLA Fig. 7)")
def layers_of_client(
    runs: Sequence[Run],
    *,
    client: int = 0,
    matrix: str = "alpha",
    rounds: str = "last",
    seed: int | None = None,
) -> Drawing:
    """Heat maps layer x sender of the weights that one client gives, a panel for each run.

    Args:
      client: the receiver.
      matrix: name of a recorded matrix.
      rounds: some of the recorded ones; the last by default.
      seed: the first by default.
    """
    runs = with_matrix(runs, matrix)
    check_client(runs, client)
    panels = []
    for run, name in zip(runs, labels(runs), strict=True):
        for q in rounds_kept(run, rounds):
            s = seed_row(run, seed)
            weights = run.matrix(matrix)[s, q, :, client].astype(float)  # [G, N]
            panels.append((run, name, run.seeds[s], int(run.matrix_rounds[q]), weights))
    tallest = max(len(weights) for *_, weights in panels)
    chart, grid = drawing.panels(len(panels), 4.2, 1.6 + 0.28 * tallest, columns=2)
    norm = PowerNorm(0.5, vmin=0.0, vmax=max(float(np.nanmax(w)) for *_, w in panels) or 1.0)
    table = []
    for axes, (run, name, seed_shown, number, weights) in zip(grid, panels, strict=True):
        image = drawing.heat(axes, weights, norm)
        names = run.blocks(len(weights))
        axes.set_yticks(range(len(names)), names)
        drawing.client_ticks(axes.xaxis, run.num_clients, 12, run.client_names)
        axes.set_title(f"{name}, round {number}", fontsize=10)
        axes.set_xlabel("sender")
        places = {"block": names, "receiver": [client], "sender": range(run.num_clients)}
        facts = {**of_run(run, name), "seed": seed_shown, "round": number}
        table.append(long_form({"weight": weights}, places, **facts))
    grid[0].set_ylabel("layer")
    drawing.colorbar(chart, image, grid, "weight (white: 0)")
    drawing.title(chart, f"{matrix} weights of client {client}")
    return Drawing.of(chart, table)
