"""The README's picture of speed: `python -m tools.speed_picture docs/images/speed.png PAGE`.

Bars of how many times as fast each network trains as the sequential PyTorch loop, from the table
of docs/performance.md.
"""

import re
from collections.abc import Sequence

from matplotlib.figure import Figure

from experiments.cli import shell
from experiments.outputs.run_files import atomic_write
from fedjax_pfl.results.plots import COLOURS
from fedjax_pfl.utils.errors import InputError
from tools import arguments

ROW = re.compile(
    r"^\| \((\w)\) (.+?) \| time relative to the PyTorch loop \| \**(\d*\.\d+)", re.MULTILINE
)
NAMES = {"a": "CNN", "b": "CNN with batch norm"}  # other cases have short names in the table


def ratios(page: str) -> dict[str, float]:
    """Return the speed-up of each network by name, slowest first.

    Raises:
      InputError: the page has no such rows.
    """
    rows = {NAMES.get(case) or name: 1 / float(time) for case, name, time in ROW.findall(page)}
    if not rows:
        raise InputError("The page has no rows 'time relative to the PyTorch loop'.")
    return dict(sorted(rows.items(), key=lambda row: row[1]))


def draw(rows: dict[str, float]) -> Figure:
    """Draw horizontal bars with their values, and a line at 1, the PyTorch loop."""
    chart = Figure(figsize=(7, 0.5 + 0.36 * len(rows)), layout="constrained")
    axes = chart.add_subplot()
    bars = axes.barh(list(rows), list(rows.values()), color=COLOURS[0], height=0.62)
    axes.bar_label(bars, [f"{ratio:.2g}" for ratio in rows.values()], padding=4)
    axes.axvline(1, color="0.35", linestyle="--", linewidth=1)
    axes.set_xlim(0, 1.08 * max(rows.values()))
    axes.set_xlabel(
        "times as fast as a sequential PyTorch loop (dashed), two CPU cores", fontsize=9
    )
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    return chart


def main(argv: Sequence[str] | None = None) -> int:
    """Draw the picture from the page with measurements."""
    args = arguments.parse("speed_picture", __doc__, argv, ["picture", "page"])
    rows = ratios(args.page.read_text(encoding="utf-8"))
    with atomic_write(args.picture) as path:
        draw(rows).savefig(path, format="png", dpi=130)
    return 0


if __name__ == "__main__":
    shell.leave(main)
