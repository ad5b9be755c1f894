"""Pictures of results, as figures that need no display and no global state.

Every function returns a `matplotlib.figure.Figure`; `figure.savefig(path)` writes it.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from fedjax_pfl.results import result_table
from fedjax_pfl.results.model_names import PERSONALIZED
from fedjax_pfl.results.result_scores import ResultScores
from fedjax_pfl.utils.errors import require, require_name
from fedjax_pfl.utils.metric_names import ACCURACY, Measure
from fedjax_pfl.utils.plotting import COLOURS, HEAT, canvas, client_ticks

DASHES: tuple[Any, ...] = (
    "-", "--", ":", "-.", (0, (6, 1, 1, 1, 1, 1)), (0, (8, 3)), (0, (1, 3)),
)  # fmt: skip
LINE_MARKERS = (None, "o", "s", "^")  # when colours and dashes are used up
STYLES = len(COLOURS) * len(DASHES) * len(LINE_MARKERS)  # distinct styles
MARKERS = "osD^vP*X"  # of scatter plots
GREY = "0.72"
_PANEL = 3.0  # inches, side of one matrix
_ACROSS = 4  # matrices side by side
_MOST = 1000  # clients along one side of a picture of a matrix


_CHOSEN: ContextVar[Mapping[int, str]] = ContextVar("chosen colours", default=MappingProxyType({}))


@contextlib.contextmanager
def with_colours(chosen: Mapping[int, str]) -> Iterator[None]:
    """Give styles, by their numbers, other colours than their defaults."""
    token = _CHOSEN.set(chosen)
    try:
        yield
    finally:
        _CHOSEN.reset(token)


def colour(k: int) -> str:
    """Return the colour of style k."""
    return _CHOSEN.get().get(k, COLOURS[k % len(COLOURS)])


def style(k: int) -> dict[str, Any]:
    """Return colour, dash and marker of line k; the first 49 differ without a marker."""
    plain = len(COLOURS) * len(DASHES)
    mark = LINE_MARKERS[k // plain % len(LINE_MARKERS)]
    return {
        "color": colour(k),
        "linestyle": DASHES[k // len(COLOURS) % len(DASHES)],
        **({} if mark is None else {"marker": mark, "markevery": 0.1, "markersize": 4}),
    }


def marker(k: int) -> str:
    """Return the k-th marker."""
    return MARKERS[k % len(MARKERS)]


def band(
    axes: Axes,
    x: Any,
    values: np.ndarray,
    k: int | None = 0,
    label: str | None = None,
    **options: Any,
) -> Line2D:
    """Draw a line of means over seeds, in a band from the lowest to the highest.

    Args:
      x: [X]; values: [S, X], NaN where there is none.
      k: style of the line; None draws it thin and grey.
      **options: of `Axes.plot`.

    Returns:
      The line.
    """
    known = np.isfinite(values).any(axis=0)
    x, values = np.asarray(x)[known], np.asarray(values, float)[:, known]
    look = {"color": GREY, "linewidth": 0.8, "zorder": 1} if k is None else style(k)
    if len(x) < 4:  # a line of one point shows nothing
        look |= {"marker": marker(k or 0), "markersize": 4}
    (line,) = axes.plot(x, np.nanmean(values, axis=0), label=label, **(look | options))
    if k is not None and len(values) > 1:
        low, high = np.nanmin(values, axis=0), np.nanmax(values, axis=0)
        axes.fill_between(x, low, high, color=line.get_color(), alpha=0.18, linewidth=0)
    return line


def tidy(axes: Axes, **labels: Any) -> None:
    """Add a light grid and labels, and remove the frame."""
    axes.set(**labels)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)


def accuracy_curves(
    results: Mapping[str, ResultScores],
    model: str = PERSONALIZED,
    split: str = "test",
    setting: int | None = None,
    styles: Mapping[str, int] | None = None,
) -> Figure:
    """Plot mean accuracy (or the main metric) over clients by round, a line for each result.

    The line is the mean over seeds, the band goes from the lowest seed to the highest.

    Args:
      results: by the name that the legend shows.
      model, split: which accuracy.
      setting: index of the swept setting, which only results of one setting can do without.
      styles: numbers of the lines' styles by name; by default they are counted.
    """
    for name, one in results.items():
        known = one.num_settings == 1 if setting is None else 0 <= setting < one.num_settings
        allowed = f"an index in 0..{one.num_settings - 1}, for the settings of {name!r}"
        require(known, "setting", setting, allowed)
    lines = {name: one.curve(model, split)[:, setting or 0] for name, one in results.items()}
    rounds = {name: one.eval_rounds for name, one in results.items()}
    measure = next(iter(results.values())).measure() if results else ACCURACY
    return curves(lines, rounds, styles, measure)


def curves(
    lines: Mapping[str, np.ndarray],
    rounds: Mapping[str, np.ndarray],
    styles: Mapping[str, int] | None = None,
    measure: Measure = ACCURACY,
) -> Figure:
    """Plot a measure by round: mean over seeds, in a band from the lowest to the highest.

    Args:
      lines: values [S, E] by the name that the legend shows.
      rounds: E numbers, for each of them.
      styles: numbers of the lines' styles by name; by default they are counted.
      measure: which one.
    """
    require(len(lines) > 0, "results", lines, "at least one")
    figure = canvas(7.5, 4.5)
    axes = figure.add_subplot()
    finals = {}
    for k, (name, values) in enumerate(lines.items()):
        curve = measure.scale * values
        line = band(axes, rounds[name], curve, k if styles is None else styles[name], name)
        finals[line] = curve[:, -1].mean()
    ranked = sorted(
        finals, key=lambda line: -np.nan_to_num(measure.toward(finals[line]), nan=-np.inf)
    )
    labels = [f"{line.get_label()}  {measure.brief(finals[line])}" for line in ranked]
    title = "last round, %" if measure.fraction else "last round"
    axes.legend(
        ranked, labels, title=title, loc="center left", bbox_to_anchor=(1.01, 0.5),
        frameon=False, alignment="left",
    )  # fmt: skip
    tidy(axes, xlabel="round", ylabel=measure.axis)
    axes.locator_params("x", integer=True)
    return figure


def mixing_heatmaps(
    matrices: np.ndarray,
    rounds: Sequence[int] | np.ndarray,
    title: str = "mixing matrix",
    row_names: Sequence[str] | None = None,
    client_names: Sequence[str] = (),
) -> Figure:
    """Plot mixing matrices of rounds, four side by side, on one colour scale.

    The scale is that of square roots: weights of others are often small compared to a client's own.

    Args:
      matrices: [Q, N, N] (receiver, sender), or [Q, G, N, N] with a picture below the other for
        each of G groups of layers. Where all receivers get the same mix, [Q, 1, N], it is drawn N
        times.
      rounds: Q numbers.
      title: of the figure.
      row_names: G names of the groups.
      client_names: N names, or () for their numbers.

    Of many clients every k-th is drawn, as the picture has no more points.
    """
    matrices = np.asarray(matrices)
    shape = matrices.shape
    fits = matrices.ndim in (3, 4) and shape[0] == len(rounds) and shape[-2] in (1, shape[-1])
    require(fits, "matrices", shape, f"[{len(rounds)}, N, N] or [{len(rounds)}, G, N, N]")
    if matrices.ndim == 3:
        matrices = matrices[:, None]
    count, rows, _, n = matrices.shape
    columns = min(count, _ACROSS)
    lines = -(-count // columns)
    top = float(np.nanmax(matrices, initial=0.0)) or 1.0
    step = -(-n // _MOST)
    matrices = matrices[..., ::step, ::step].astype(float)
    matrices = np.broadcast_to(matrices, (count, rows, *[matrices.shape[-1]] * 2))
    extent = (-0.5, n - 0.5, n - 0.5, -0.5)
    size = (_PANEL * columns + 1.2, _PANEL * rows * lines + 0.8)
    figure = canvas(*size)
    grid = figure.subplots(rows * lines, columns, squeeze=False, sharex=True, sharey=True)
    for unused in grid[-rows:, count - columns * (lines - 1) :].flat:
        unused.remove()
    norm = PowerNorm(0.5, vmin=0.0, vmax=top)
    for g, q in np.ndindex(rows, count):
        axes: Any = grid[q // columns * rows + g, q % columns]
        shown = np.ma.masked_equal(matrices[q, g], 0)
        axes.imshow(shown, cmap=HEAT, norm=norm, interpolation="nearest", extent=extent)
        client_ticks(axes.xaxis, n, names=client_names)
        client_ticks(axes.yaxis, n, names=client_names)
        if g == 0:
            axes.set_title(f"round {rounds[q]}", fontsize=10)
        if g == rows - 1 and q + columns >= count:
            axes.set_xlabel("sender")
            axes.xaxis.set_tick_params(labelbottom=True)
        if q % columns == 0:
            named = f"{row_names[g]}\n" if row_names is not None else ""
            axes.set_ylabel(f"{named}receiver")
    scale = ScalarMappable(norm, HEAT)
    figure.colorbar(scale, ax=figure.axes, label="weight (white: 0)", fraction=0.05, pad=0.02)
    figure.suptitle(title, fontsize=11, wrap=True)
    return figure


def plot_curves(result: ResultScores, model: str, split: str) -> Figure:
    """Plot mean accuracy by round, a line for each setting; see `Result.plot`."""
    result.require_scores()
    values = result.curve(model, split)
    lines = {name: values[:, h] for h, name in enumerate(result_table.setting_names(result))}
    return curves(lines, dict.fromkeys(lines, result.eval_rounds), measure=result.measure())


def plot_mixing(
    result: ResultScores, name: str | None, round: int | None, run: tuple[int, int]
) -> Figure:
    """Plot heat maps of a recorded matrix in one run (seed, setting); see `Result.plot_mixing`."""
    known = [key for key, m in result.matrices.items() if m.ndim in (5, 6)]
    require(bool(known), "matrices", [], "recorded, as mixing algorithms do")
    name = known[0] if name is None else name
    require_name("matrix", name, known)
    recorded = result.matrix_rounds.tolist()
    rounds = recorded if round is None else [round]
    require(rounds[0] in recorded, "round", round, f"one of {recorded}")
    values = result.matrices[name][run][[recorded.index(one) for one in rounds]]
    names = result_table.named_settings(result.settings)
    title = ", ".join([result.algorithm, *names[run[1] : run[1] + 1]])
    title += f": {name}, seed {result.seeds[run[0]]}"
    grouped = values.ndim == 4 and values.shape[1] == len(result.blocks)
    return mixing_heatmaps(
        values, rounds, title, result.blocks if grouped else None, result.client_names
    )
