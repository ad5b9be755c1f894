"""cwFedAVG: class norms as estimates of class distributions, and the regularizer's effect."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.colors import Normalize, TwoSlopeNorm

from fedjax_pfl.results import plots
from fedjax_pfl.utils.errors import InputError

from . import probes
from .drawing import SMALL, Drawing, figure, numbers_of, of_run
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
    drawing = Drawing(3.6 * (len(cases) + 1), 3.9, [len(cases) + 1])
    *panels, last = drawing.axes
    top = 1.05 * max(max(truth.max(), values.max()) for *_, truth, values in cases)
    for axes, (run, row, text, weight, truth, values) in zip(panels, cases, strict=True):
        styles = {c: k for k, c in enumerate(_coloured(truth))}
        for c in sorted(range(len(truth)), key=lambda c: c in styles):
            grey = {"color": plots.GREY, "linewidth": 0.8}
            look = plots.style(styles[c]) if c in styles else grey
            (line,) = axes.plot(range(len(values)), values[:, c], label=f"class {c}", **look)
            if c in styles:
                axes.axhline(truth[c], color=look["color"], linestyle=":", linewidth=0.9)
            drawing.handles.setdefault(f"class {c}" if c in styles else "another class", line)
        plots.tidy(axes, xlabel="minibatch", ylim=(0, top))
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.set_title(text, **SMALL)
        facts = {"run": str(run.folder), "seed": run.seeds[row], "client": client}
        drawing.add(
            {"norm": values, "true_share": np.broadcast_to(truth, values.shape)},
            {"minibatch": range(len(values)), "class": range(len(truth))},
            **facts, wdr_weight=weight,
        )  # fmt: skip
    drawing.axes[0].set_ylabel("class norm (dotted: true share)")
    last.plot([0, top], [0, top], color="0.5", linewidth=0.8, linestyle="--")
    for k, (*_, text, _, truth, values) in enumerate(cases):
        look = {"color": plots.colour(k), "linestyle": "none", "marker": plots.marker(k)}
        last.plot(truth, values[-1], label=text, alpha=0.85, **look)
    plots.tidy(last, xlabel="true share of the class", ylabel="class norm after the epoch")
    last.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), frameon=False, fontsize=8)
    if len({tuple(_coloured(truth)) for *_, truth, _ in cases}) == 1:
        known = [f"class {c}" for c in range(len(truth))] + ["another class"]
        known = [name for name in known if name in drawing.handles]
        drawing.legend(handles={name: drawing.handles[name] for name in known})
    drawing.title(f"client {client}: an epoch after the last round, minibatch by minibatch")
    return drawing


def _coloured(truth: np.ndarray) -> list[int]:
    """Return the classes with most samples, without empty ones."""
    return [int(c) for c in np.argsort(-truth, kind="stable")[:COLOURED] if truth[c] > 0]


def _weights(words: str, run: Run) -> list[float]:
    if not words:
        own = run.hyperparameters.get(REGULARIZER, run.settings.get(REGULARIZER))
        return [float(own or 0.0)]
    chosen = numbers_of(REGULARIZER, words, "0,10")
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
    names, tables = labels(runs), {}
    partitions = set()
    numbers = []
    for run, name in zip(runs, names, strict=True):
        federation, row = probes.federation_of(run, data_dir), seed_row(run, seed)
        shares = probes.class_shares(federation)
        partition = run.summary["partition_hash"]
        if partition not in partitions:
            again = f" of {name}" if partitions else ""
            tables[f"true class shares{again}"] = shares
            partitions.add(partition)
        models = probes.saved_models(run, row, federation, model)
        tables[name] = probes.model_class_norms(federation, models)
        values = {"norm": tables[name], "true_share": shares}
        numbers.append((values, {**of_run(run, name), "seed": run.seeds[row]}))
    count = len(tables) + difference
    columns = 4 if count > 6 or count == 4 else 3
    drawing = Drawing.panels(count, 3.6, 3.3, columns=columns)
    for values, facts in numbers:
        _add(drawing, values, ("client", "class"), **facts)
    top = max(float(values.max()) for values in tables.values())
    for axes, (name, values) in zip(drawing.axes, tables.items(), strict=False):
        norm = Normalize(values.min(), values.max()) if own_scales else Normalize(0.0, top)
        image = plots.heat(axes, values.T, norm)
        if own_scales:
            drawing.colorbar(image, axes, "")
        axes.set_title(name, **SMALL)
    if not own_scales:
        meaning = "share of the class, or class norm (white: 0)"
        drawing.colorbar(image, drawing.axes[: len(tables)], meaning)
    if difference:
        _difference(drawing, names, tables)
    shapes = [values.shape for values in tables.values()]
    for axes, (n, num_classes) in zip(drawing.axes, [*shapes, shapes[-1]], strict=False):
        plots.ticks(axes.xaxis, n, 10)
        plots.ticks(axes.yaxis, num_classes, 12)
        axes.set(xlabel="client", ylabel="class")
    return drawing


def _add(drawing: Drawing, values: Mapping[str, np.ndarray], axes: Sequence[str], **facts) -> None:
    (shape,) = {one.shape for one in values.values()}
    drawing.add(values, dict(zip(axes, map(range, shape), strict=True)), **facts)


def _difference(drawing: Drawing, names: Sequence[str], tables: Mapping[str, np.ndarray]) -> None:
    axes, first, last = drawing.axes[-1], tables[names[0]], tables[names[-1]]
    if len(names) < 2 or first.shape != last.shape:
        raise InputError("--difference needs two runs or more with the same clients and classes.")
    values = last - first
    reach = float(np.abs(values).max()) or 1.0
    image = plots.heat(axes, values.T, TwoSlopeNorm(0.0, -reach, reach), "PuOr", blank=None)
    axes.set_title(f"{names[-1]} minus {names[0]}", **SMALL, wrap=True)
    drawing.colorbar(image, axes, "difference")


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
    drawing, images = Drawing.panels(len(runs), 3.4, 3.1), []
    for axes, run, name in zip(drawing.axes, runs, labels(runs), strict=True):
        row, federation = seed_row(run, seed), probes.federation_of(run)
        stacks = [
            probes.saved_models(run, row, federation, m) for m in probes.saved_names(run, prefix)
        ]
        values = np.stack([probes.model_class_norms(federation, one)[0] for one in stacks])
        images.append(plots.heat(axes, values, Normalize(0.0)))
        facts = {**of_run(run, name), "seed": run.seeds[row]}
        _add(drawing, {"norm": values}, ("model_of_class", "class"), **facts)
        plots.ticks(axes.xaxis, values.shape[1], 12)
        plots.ticks(axes.yaxis, values.shape[0], 12)
        first = axes.get_subplotspec().is_first_col()
        axes.set(xlabel="class", ylabel="model of class" if first else "")
        axes.set_title(name, **SMALL)
    norm = Normalize(0.0, float(max(drawing.numbers["norm"])))
    for image in images:
        image.set_norm(norm)
    drawing.colorbar(images[-1], drawing.axes, "class norm")
    return drawing
