"""Pictures of one result."""

from typing import TYPE_CHECKING

from matplotlib.figure import Figure

from fedjax_pfl.results import plots, result_table
from fedjax_pfl.utils.errors import require, require_name

if TYPE_CHECKING:
    from fedjax_pfl.results.result import Result


def plot_curves(result: "Result", model: str, split: str) -> Figure:
    """Plot mean accuracy by round, a line for each setting; see `Result.plot`."""
    result.require_scores()
    curves = result.curve(model, split)
    lines = {name: curves[:, h] for h, name in enumerate(result_table.setting_names(result))}
    return plots.curves(lines, dict.fromkeys(lines, result.eval_rounds), measure=result.measure())


def plot_mixing(
    result: "Result", name: str | None, round: int | None, run: tuple[int, int]
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
    return plots.mixing_heatmaps(
        values, rounds, title, result.blocks if grouped else None, result.client_names
    )
