"""cwFedAVG: class norms as estimates of class distributions, and the regularizer's effect."""

from collections.abc import Sequence

import numpy as np
from matplotlib.colors import Normalize, TwoSlopeNorm

from fedjax_pfl.utils.errors import InputError

from . import drawing, probes
from .drawing import Drawing, figure, long_form, of_run
from .matrices import check_client, seed_row
from .runs import Run
from .selection import having, labels, with_models
from .settings import against_setting

REGULARIZER = "wdr_weight"  # lambda: a hyperparameter of cwFedAVG, a flag for other algorithms
COLOURED = 7  # classes that have a colour

figure(
    "cwfedavg/lambda", "accuracy and distance of the norms against lambda (cwFedAVG Fig. 3)",
    against_setting, x=f"cwfedavg.{REGULARIZER}", group="dataset", record="class_share_error",
)  # fmt: skip


@figure("cwfedavg/minibatches", "class norms over the minibatches of an epoch (cwFedAVG Fig. 2, 5)")
def minibatches(
    runs: Sequence[Run],
    *,
    client: int = 0,
    seed: int | None = None,
    wdr_weight: str = "",
    model: str = "personalized",
    data_dir: str = "",
) -> Drawing:
    """Estimated class shares of one client during the epoch that would follow the run.

    One panel for each run and lambda has a line for each class. Up to seven classes with most
    samples are coloured, with dotted lines at their true shares. The last panel shows the estimates
    after the epoch against the true shares.

    Args:
      client: the client whose model and samples are used.
      seed: the first by default.
      wdr_weight: values of lambda; by default the run's own.
      model: name of the saved model that the epoch starts from.
      data_dir: folder with the data set, if it was moved after the run.
    """
    runs = with_models(runs)
    check_client(runs, client)
    cases = []
    for run, name in zip(runs, labels(runs), strict=True):
        federation = probes.federation_of(run, data_dir, without=[REGULARIZER])
        for weight in _weights(wdr_weight, run):
            text = f"{name}, λ = {weight:g}" if wdr_weight or len(runs) == 1 else name
            row = seed_row(run, seed)
            values = probes.norms_by_minibatch(run, row, federation, model, client, weight)
            truth = probes.class_shares(federation)[client]
            cases.append((run, row, text, weight, truth, values))
    chart = drawing.canvas(3.6 * (len(cases) + 1), 3.9)
    grid = chart.subplots(1, len(cases) + 1)
    top = 1.05 * max(max(truth.max(), values.max()) for *_, truth, values in cases)
    lines, table = {}, []
    for axes, (run, row, text, weight, truth, values) in zip(grid, cases, strict=False):
        colours = {c: k for k, c in enumerate(_coloured(truth))}
        for c in sorted(range(len(truth)), key=lambda c: c in colours):
            k = colours.get(c)
            look = {"color": drawing.GREY, "linewidth": 0.8} if k is None else drawing.style(k)
            (line,) = axes.plot(range(len(values)), values[:, c], label=f"class {c}", **look)
            if k is not None:
                axes.axhline(truth[c], color=look["color"], linestyle=":", linewidth=0.9)
            lines.setdefault("another class" if k is None else f"class {c}", line)
        drawing.tidy(axes, xlabel="minibatch", ylim=(0, top))
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.set_title(text, fontsize=10)
        facts = {"run": str(run.folder), "seed": run.seeds[row], "client": client}
        table.append(long_form(
            {"norm": values, "true_share": np.broadcast_to(truth, values.shape)},
            {"minibatch": range(len(values)), "class": range(len(truth))},
            **facts, wdr_weight=weight,
        ))  # fmt: skip
    grid[0].set_ylabel("class norm (dotted: true share)")
    last = grid[-1]
    last.plot([0, top], [0, top], color="0.5", linewidth=0.8, linestyle="--")
    for k, (*_, text, _, truth, values) in enumerate(cases):
        look = {"color": drawing.colour(k), "linestyle": "none"}
        last.plot(truth, values[-1], marker=drawing.marker(k), label=text, alpha=0.85, **look)
    drawing.tidy(last, xlabel="true share of the class", ylabel="class norm after the epoch")
    last.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), frameon=False, fontsize=8)
    known = sorted((n for n in lines if n != "another class"), key=lambda n: int(n.split()[1]))
    known += ["another class"] * ("another class" in lines)
    if len({tuple(_coloured(truth)) for *_, truth, _ in cases}) == 1:
        drawing.legend(chart, [lines[name] for name in known], None, known)
    drawing.title(chart, f"client {client}: an epoch after the last round, minibatch by minibatch")
    return Drawing.of(chart, table)


def _coloured(truth: np.ndarray) -> list[int]:
    """The classes with most samples, without empty ones."""
    return [int(c) for c in np.argsort(-truth, kind="stable")[:COLOURED] if truth[c] > 0]


def _weights(words: str, run: Run) -> list[float]:
    if not words:
        own = run.hyperparameters.get(REGULARIZER, run.settings.get(REGULARIZER))
        return [float(own or 0.0)]
    try:
        chosen = [float(word) for word in words.split(",")]
    except ValueError as error:
        raise InputError(f"--wdr_weight must be numbers such as 0,10, got {words!r}.") from error
    if min(chosen) < 0:
        raise InputError(f"--wdr_weight must be at least 0, got {words!r}.")
    return chosen


@figure("cwfedavg/class_norms", "class norms of all clients' models (cwFedAVG Fig. 4, 6, 7)")
def norms_of_models(
    runs: Sequence[Run],
    *,
    model: str = "personalized",
    seed: int | None = None,
    difference: bool = False,
    own_scales: bool = False,
    data_dir: str = "",
) -> Drawing:
    """Heat maps clients x classes: the clients' true class shares, then the norms of each run.

    Args:
      model: name of the saved model.
      seed: the first by default.
      difference: a further panel, the last run minus the first (Fig. 4d).
      own_scales: a colour scale for each panel, if one for all shows too little.
      data_dir: folder with the data set, if it was moved after the runs.
    """
    runs = with_models(runs)
    names = labels(runs)
    tables, seen, table = {}, set(), []
    for run, name in zip(runs, names, strict=True):
        federation = probes.federation_of(run, data_dir)
        row = seed_row(run, seed)
        partition = run.summary["partition_hash"]
        if partition not in seen:
            again = f" of {name}" if seen else ""
            tables[f"true class shares{again}"] = probes.class_shares(federation)
            seen.add(partition)
        models = probes.saved_models(run, row, federation, model)
        tables[name] = probes.model_class_norms(federation, models)
        values = {"norm": tables[name], "true_share": probes.class_shares(federation)}
        places = {
            axis: range(n) for axis, n in zip(("client", "class"), tables[name].shape, strict=True)
        }
        table.append(long_form(values, places, **of_run(run, name), seed=run.seeds[row]))
    count = len(tables) + difference
    chart, grid = drawing.panels(count, 3.6, 3.3, columns=4 if count > 6 or count == 4 else 3)
    top = max(float(values.max()) for values in tables.values())
    for axes, (name, values) in zip(grid, tables.items(), strict=False):
        norm = Normalize(0.0, float(values.max()) if own_scales else top)
        if own_scales:
            norm.vmin = float(values.min())
        image = drawing.heat(axes, values.T, norm)
        if own_scales:
            drawing.colorbar(chart, image, axes, "")
        axes.set_title(name, fontsize=10)
    if not own_scales:
        drawing.colorbar(
            chart, image, grid[: len(tables)], "share of the class, or class norm (white: 0)"
        )
    if difference:
        _difference(chart, grid[-1], names, tables)
    shapes = [values.shape for values in tables.values()]
    for axes, (n, num_classes) in zip(grid, [*shapes, shapes[-1]], strict=False):
        drawing.ticks(axes.xaxis, n, 10)
        drawing.ticks(axes.yaxis, num_classes, 12)
        axes.set(xlabel="client", ylabel="class")
    return Drawing.of(chart, table)


def _difference(chart, axes, names: Sequence[str], tables) -> None:
    first, last = tables[names[0]], tables[names[-1]]
    if len(names) < 2 or first.shape != last.shape:
        raise InputError("--difference needs two runs or more with the same clients and classes.")
    values = last - first
    reach = float(np.abs(values).max()) or 1.0
    image = drawing.heat(axes, values.T, TwoSlopeNorm(0.0, -reach, reach), "PuOr", blank=None)
    axes.set_title(f"{names[-1]} minus {names[0]}", fontsize=10, wrap=True)
    drawing.colorbar(chart, image, axes, "difference")


@figure("cwfedavg/class_models", "class norms of the models of the classes (cwFedAVG Fig. 4g, h)")
def norms_of_class_models(
    runs: Sequence[Run], *, prefix: str = "class_", seed: int | None = None
) -> Drawing:
    """Heat maps model x class: the norms of one global model for each class, a panel for each run.

    Args:
      prefix: of the names "class_0", "class_1", ... of the saved models.
      seed: the first by default.
    """
    runs = having(
        with_models(runs), lambda run: bool(probes.saved_names(run, prefix)),
        f"saved models {prefix}0, {prefix}1, ...",
        "run cwfedavg with --set=cwfedavg.score_class_models=true --save_models",
    )  # fmt: skip
    names = labels(runs)
    chart, grid = drawing.panels(len(runs), 3.4, 3.1)
    shown, table = [], []
    for run, name in zip(runs, names, strict=True):
        row, federation = seed_row(run, seed), probes.federation_of(run)
        stacks = [
            probes.saved_models(run, row, federation, m) for m in probes.saved_names(run, prefix)
        ]
        shown.append(np.stack([probes.model_class_norms(federation, one)[0] for one in stacks]))
        models, classes = shown[-1].shape
        places = {"model_of_class": range(models), "class": range(classes)}
        facts = {**of_run(run, name), "seed": run.seeds[row]}
        table.append(long_form({"norm": shown[-1]}, places, **facts))
    norm = Normalize(0.0, max(float(values.max()) for values in shown))
    for axes, name, values in zip(grid, names, shown, strict=True):
        image = drawing.heat(axes, values, norm)
        drawing.ticks(axes.xaxis, values.shape[1], 12)
        drawing.ticks(axes.yaxis, values.shape[0], 12)
        axes.set(xlabel="class", ylabel="model of class" if drawing.leftmost(axes) else "")
        axes.set_title(name, fontsize=10)
    drawing.colorbar(chart, image, grid, "class norm")
    return Drawing.of(chart, table)
