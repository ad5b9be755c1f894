"""The sections of a study's report, and its files."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from fedjax_pfl.results import harm
from fedjax_pfl.results.comparison_plots import sorted_gains
from fedjax_pfl.results.intervals import mean_with_interval
from fedjax_pfl.results.notes import grouped
from fedjax_pfl.results.table import Column, Table
from fedjax_pfl.utils.errors import InputError
from fedjax_pfl.utils.metric_names import ACCURACY, NEITHER

from ..outputs import html_page
from ..outputs.report import Section
from ..outputs.run_files import write_csv, write_text
from .ranking import Outcome, at_the_edge, best, best_on_test, best_per_client
from .study_report import COSTS, MEANINGS, SETTING, Report

Tuned = Mapping[tuple[str, str], Sequence[Outcome]]  # by (row, setting)
PLACE = (Column(SETTING, "Setting"), Column("row", "Row", left=True))
SHORT = {
    "megabytes_up": "MB up", "megabytes_down": "MB down", "gflop": "GFLOP",
    "seconds_per_round": "s/round",
}  # fmt: skip
PER_CLIENT = (
    "Test, chosen per client: each client has the hyperparameters that are best on its own "
    "validation samples. Best on test: the highest test mean of any combination, which was chosen "
    "on test samples."
)


def sections(report: Report, tuned: Tuned | None = None) -> list[Section]:
    """Return the sections: measures, clients, ranks over settings, tuning, costs."""
    found = [Section(report.heading(name), tables=[report.table(name)]) for name in report.measures]
    found.append(Section("By setting", "study", [], report.notes(), report.drawing().figure))
    found += _clients(report)
    found += _ranks(report)
    found += [_tuning(tuned)] if tuned else []
    return [*found, _costs(report)]


def _clients(report: Report) -> list[Section]:
    """Return the section on who gains and who is harmed, if there is a baseline."""
    measure, tables = next(iter(report.runs.values())).measure, []
    notes = [harm.BETTER.format(measure.label), *([harm.WORSE] if measure == ACCURACY else [])]
    for base in report.baselines:
        rows = [
            {SETTING: panel.title, "row": row, **harm.summary_values(base, gains)}
            for panel in report.gains
            if panel.baseline == base
            for row, gains in panel.gains.items()
        ]
        columns = [*PLACE, *harm.columns(base, measure, tuple(harm.TITLES), brief=False)]
        tables.append(Table(columns, rows, [*notes, harm.REST]))
    if not tables:
        return []
    title = f"Clients against {' and '.join(report.baselines)}"
    return [Section(title, "gains", tables, picture=sorted_gains(report.gains, report.styles))]


def _ranks(report: Report) -> list[Section]:
    """Return the section on ranks over settings, if there are several rows and settings."""
    title = "Ranks over settings"
    first = report.measures[0]
    several = min(len(report.styles), len({setting for _, setting in report.runs})) > 1
    if not several or report.measure(first).better == NEITHER:
        return []
    try:
        ranking, notes = report.pivot(first).ranking()
    except InputError as error:
        return [Section(title, notes=[str(error)])]
    table = ranking.table(next((one for one in report.baselines if one in ranking.names), None))
    table = replace(table, notes=[*table.notes, *notes])
    return [Section(title, "ranks", [table], picture=ranking.plot())]


def _tuning(tuned: Tuned) -> Section:
    """Return the section on the hyperparameters that each row tried and chose."""
    rows, edges = [], {}
    first = next(iter(tuned.values()))
    measure, seeds = first[0].measure, first[0].seeds
    for (row, setting), outcomes in tuned.items():
        (chosen,), highest = best(outcomes), best_on_test(outcomes)
        scores = {
            "validation": chosen.validation,
            "test": chosen.test,
            "per_client": best_per_client(outcomes),
            "best_on_test": highest.test,
        }
        cells = {key: mean_with_interval(np.asarray(one), measure) for key, one in scores.items()}
        words = ", ".join(f"{name}={value}" for name, value in chosen.setting.items())
        rows.append({SETTING: setting, "row": row, "chosen": words, **cells})
        notes = (note.partition(": ")[2].rstrip(".") for note in at_the_edge(outcomes))
        edges[f"{setting}/{row}"] = list(notes)
    columns = [
        *PLACE,
        Column("chosen", "Chosen", left=True),
        Column("validation", measure.heading("Validation")),
        Column("test", measure.heading("Test")),
        Column("per_client", measure.heading("Test, chosen per client")),
        Column("best_on_test", measure.heading("Best on test")),
    ]
    number = f"seed {seeds[0]}" if len(seeds) == 1 else f"seeds {seeds[0]} to {seeds[-1]}"
    about = (
        f"Each row tried {len(first)} combination{'s' * (len(first) > 1)} with {number} and has "
        f"the one with the best mean validation {measure.label}; all other sections are of runs "
        "with that one."
    )
    return Section("Tuning", "tuning", [Table(columns, rows, [about, PER_CLIENT, *grouped(edges)])])


def _costs(report: Report) -> Section:
    rows = [
        {SETTING: setting, "row": row}
        | {name: float(values.mean()) for name, (_, of) in COSTS.items()
           if not np.isnan(values := of(run)).any()}
        for (row, setting), run in report.runs.items()
    ]  # fmt: skip
    columns = [*PLACE, *(Column(name, title) for name, title in SHORT.items())]
    notes = [f"{title}: {MEANINGS[name]}." for name, title in SHORT.items()]
    return Section("Costs", "costs", [Table(columns, rows, notes)])


def write(report: Report, folder: Path, parts: Sequence[Section], command: str) -> None:
    """Write `study.md`, `.tex`, `.html` and `.csv`, and the sections' numbers and pictures."""
    for part in parts:
        part.write_numbers(folder)
    text = "\n\n".join(["# Study", f"```bash\n{command}\n```", *(p.to_markdown() for p in parts)])
    write_text(folder / "study.tex", "\n".join(part.to_latex() for part in parts))
    write_csv(folder / "study.csv", report.numbers)
    write_text(folder / "study.html", html_page.page("Study", text, folder))
    write_text(folder / "study.md", f"{text}\n")
