"""pFedLA (CVPR 2022): layer-wise weights of clients, by round, client and layer."""

from collections.abc import Sequence

import numpy as np
from matplotlib.colors import PowerNorm
from matplotlib.ticker import FixedLocator

from fedjax_pfl.results import plots

from .drawing import SMALL, Drawing, figure, of_run, over_seeds
from .matrices import add_weights, block_rows, check_client, recorded, rounds_at, square_clients
from .runs import Run
from .scores import curve
from .selection import labels, with_matrix, with_styles
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
    drawing = Drawing(8.4, 3.8, [2])
    left, right = drawing.axes
    layers: list[str] = []
    numbers = set()
    for run, name, k in with_styles(runs):
        values = curve(run, np.array([client]), "personalized", "test")
        drawing.band(left, run.eval_rounds, values, k, name)
        q = rounds_at(run, rounds)[0]
        own = run.matrix(matrix)[:, q, :, client, client].astype(float)  # [S, G]
        blocks = run.result.blocks if own.shape[1] == 1 else run.blocks(own.shape[1])
        own = np.broadcast_to(own, (len(own), len(blocks)))
        layers += [block for block in blocks if block not in layers]
        look = {"marker": plots.marker(k), "markersize": 5}
        plots.band(right, [layers.index(block) for block in blocks], own, k, **look)
        number = int(run.matrix_rounds[q])
        numbers.add(number)
        places = {"seed": run.seeds, "round": [number], "block": blocks, "receiver": [client]}
        drawing.add({"weight": own}, places | {"sender": [client]}, **of_run(run, name))
    plots.tidy(left, xlabel="round", ylabel=f"client {client}: {runs[0].measure.axis}")
    left.xaxis.get_major_locator().set_params(integer=True)
    right.set_xticks(range(len(layers)), layers, rotation=30 if len(layers) > 5 else 0)
    which = f"round {numbers.pop()}" if len(numbers) == 1 else f"{rounds} round"
    plots.tidy(right, xlabel="layer", ylabel=f"own weight of client {client}, {which}")
    right.set_ylim(bottom=0)
    drawing.legend()
    drawing.title(f"Client {client}{over_seeds(runs)}")
    return drawing


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
    styles = {j: k + k // 6 for k, j in enumerate(sorted(others[:COLOURED]))}
    roles = {} if len(runs) > 1 else dict(enumerate(_roles(runs[0])))
    senders = {j: f"client {j}{roles.get(j, '')}" for j in styles} | {client: "itself"}
    own = {"color": "black", "linewidth": 2.2, "zorder": 3}
    drawing = Drawing.panels(len(panels), 3.3, 2.9, sharey=True)
    for axes, (run, name, layer, weights) in zip(drawing.axes, panels, strict=True):
        for j in range(weights.shape[-1]):
            style, look = (0, own) if j == client else (styles.get(j), {})
            sender = senders.get(j, "another")
            drawing.band(axes, run.matrix_rounds, weights[:, :, j], style, sender, **look)
        places = {"seed": run.seeds, "round": run.matrix_rounds, "block": [layer]}
        places |= {"receiver": [client], "sender": range(weights.shape[-1])}
        drawing.add({"weight": weights}, places, **of_run(run, name))
        axes.set_title(f"{name}: {layer}" if len(runs) > 1 else layer, **SMALL)
    drawing.by_round("weight (scale of roots)")
    # All axes share it; roots, since others' weights are small compared to the client's own.
    first = drawing.axes[0]
    first.set_yscale("function", functions=(lambda y: np.sqrt(np.maximum(y, 0)), np.square))
    first.set_ylim(0, 1.05 * max(float(np.nanmax(weights)) for *_, weights in panels))
    first.yaxis.set_major_locator(FixedLocator([0, 0.01, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1]))
    known = [
        n for n in ("itself", *map(senders.get, sorted(styles)), "another") if n in drawing.handles
    ]
    drawing.legend("weight of", {name: drawing.handles[name] for name in known})
    drawing.title(f"{matrix} weights of client {client}{over_seeds(runs)}")
    return drawing


def _roles(run: Run) -> list[str]:
    """Return each client's role in the partition, such as ", twin"; [] where there are none."""
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
    rows = list(recorded(runs, matrix, rounds, seed))
    chosen = [block_rows(run, len(weights), block) for run, *_, weights in rows]
    counts = [len(layers) for layers in chosen]
    drawing = Drawing(2.5 * max(counts) + 1.3, 2.7 * len(rows) + 0.3, counts)
    norm = _roots([weights[layers] for (*_, weights), layers in zip(rows, chosen, strict=True)])
    for row, one, layers in zip(drawing.rows, rows, chosen, strict=True):
        run, name, seed_shown, number, weights = one
        for axes, g in zip(row, layers, strict=True):
            image = plots.heat(axes, weights[g], norm)
            square_clients(axes, run)
            layer = run.blocks(len(weights))[g]
            axes.set_title(layer, **SMALL)
            axes.set_xlabel("sender")
            facts = {"seed": seed_shown, "round": number, "block": layer}
            add_weights(drawing, run, name, weights[g], **facts)
        row[0].set_ylabel(f"{name}, round {number}\nreceiver")
    drawing.colorbar(image, drawing.axes, "weight (white: 0)")
    return drawing


def _roots(weights: Sequence[np.ndarray]) -> PowerNorm:
    """Return a colour scale by square roots, from 0 to the largest weight."""
    top = max(float(np.nanmax(one)) for one in weights) or 1.0
    return PowerNorm(0.5, vmin=0.0, vmax=top)


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
    check_client(with_matrix(runs, matrix), client)
    panels = list(recorded(runs, matrix, rounds, seed))
    tallest = max(len(weights) for *_, weights in panels)
    drawing = Drawing.panels(len(panels), 4.2, 1.6 + 0.28 * tallest, columns=2)
    norm = _roots([weights[:, client] for *_, weights in panels])
    for axes, (run, name, seed_shown, number, weights) in zip(drawing.axes, panels, strict=True):
        image = plots.heat(axes, weights[:, client], norm)
        names = run.blocks(len(weights))
        axes.set_yticks(range(len(names)), names)
        plots.client_ticks(axes.xaxis, run.num_clients, 12, run.client_names)
        axes.set_title(f"{name}, round {number}", **SMALL)
        axes.set_xlabel("sender")
        places = {"block": names, "receiver": [client], "sender": range(run.num_clients)}
        facts = {**of_run(run, name), "seed": seed_shown, "round": number}
        drawing.add({"weight": weights[:, client]}, places, **facts)
    drawing.axes[0].set_ylabel("layer")
    drawing.colorbar(image, drawing.axes, "weight (white: 0)")
    drawing.title(f"{matrix} weights of client {client}")
    return drawing
