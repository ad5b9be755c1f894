"""The picture of a table: the paper's numbers beside ours."""

import textwrap
from typing import TYPE_CHECKING

from fedjax_pfl.results.plots import COLOURS, MARKERS

from ..figures.drawing import Drawing

if TYPE_CHECKING:
    from .table_report import Report

PICTURE = "table.png"


def picture(report: "Report") -> Drawing | None:
    """Draw each column's rows: the paper's numbers hollow, ours filled."""
    if not report.measured:
        return None
    most = max(len(report.cells[one.column.name]) for one in report.measured)
    drawing = Drawing.panels(len(report.measured), 4.4, 1.1 + 0.24 * most)
    for section, panel in zip(report.measured, drawing.axes, strict=True):
        cells = report.cells[section.column.name].dropna(subset=["ours"])
        cells = cells.sort_values("paper", ascending=False, kind="stable")[::-1]
        place = range(len(cells))
        panel.plot(cells["paper"], place, MARKERS[0], mfc="none", color=COLOURS[0])
        look = {"fmt": MARKERS[0], "ms": 4, "color": COLOURS[1]}
        panel.errorbar(cells["ours"], place, xerr=cells["ci95_half_width"], **look)
        panel.set_yticks(place, [line.title for line in cells["line"]], fontsize=7)
        panel.set_title(textwrap.fill(section.title, 52), fontsize=8)
        panel.set_xlabel(section.unit, fontsize=8)
        panel.tick_params(axis="x", labelsize=7)
        panel.grid(axis="x", alpha=0.3)
        panel.margins(y=0.5 / len(cells))
    drawing.figure.suptitle(
        f"{report.table.name}, {report.scale}: hollow the paper's, filled ours with 95 % interval",
        fontsize=9,
    )
    return drawing
