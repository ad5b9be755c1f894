"""The README's picture: `python -m tools.demo_picture docs/images/demo.png RUN_FOLDER`.

Accuracy by round of all algorithms of a comparison, and FedDWA's weights in the first round
beside it, so that one sees which algorithm is ahead and whose models it mixes.
"""

from collections.abc import Sequence

from matplotlib.colors import Normalize

from experiments.cli import shell
from experiments.figures.drawing import Drawing
from experiments.figures.loading import find
from experiments.figures.matrices import square_clients
from experiments.figures.runs import Run
from experiments.outputs.run_files import atomic_write
from fedjax_pfl.results import plots
from fedjax_pfl.utils.errors import InputError
from fedjax_pfl.utils.plotting import heat
from tools import arguments

MIXED = "feddwa"


def draw(runs: Sequence[Run]):
    """Draw curves with a band over the seeds, and the mixing matrix of the first seed.

    Raises:
      InputError: none of the runs is FedDWA's, so there is no matrix to show.
    """
    mixed = [run for run in runs if run.algorithm == MIXED]
    if not mixed:
        raise InputError(f"These runs lack {MIXED}, whose mixing matrix stands beside the curves.")
    drawing = Drawing.panels(2, 4.4, 3.2, width_ratios=(1.35, 1))
    left, right = drawing.axes
    drawn = []
    for k, run in enumerate(runs):  # the first styles have a colour each
        values = run.measure.scale * run.values().mean(axis=-1)
        line = plots.band(left, run.result.eval_rounds, values, k)
        drawn.append((values[:, -1].mean(), run.algorithm, line))
    plots.tidy(left, ylabel="accuracy, %")
    left.set_xlabel("round")
    left.xaxis.get_major_locator().set_params(integer=True)
    drawn.sort(key=lambda one: -one[0])
    left.legend(
        [line for *_, line in drawn],
        [f"{name}  {last:.1f}" for last, name, _ in drawn],
        loc="lower right", fontsize=9, frameon=False,
    )  # fmt: skip
    left.set_title(f"{len(runs[0].seeds)} seeds: mean, lowest and highest", fontsize=10)
    run = mixed[0]
    weights = run.matrix("mixing")[0, 0].mean(axis=0)
    image = heat(right, weights, Normalize(0, float(weights.max())))
    square_clients(right, run)
    right.set(xlabel="client that sends", ylabel="client that receives")
    right.set_title(f"{MIXED}: weights in round {int(run.result.matrix_rounds[0])}", fontsize=10)
    drawing.colorbar(image, right, "weight (white: 0)")
    return drawing.figure


def main(argv: Sequence[str] | None = None) -> int:
    """Draw the picture from the folder of a comparison."""
    args = arguments.parse("demo_picture", __doc__, argv, ["picture", "folder"])
    with atomic_write(args.picture) as path:
        draw(find([str(args.folder)])).savefig(path, format="png", dpi=130)
    return 0


if __name__ == "__main__":
    shell.leave(main)
