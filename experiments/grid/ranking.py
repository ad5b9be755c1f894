"""The settings of a sweep by validation score: the ranking, the choice, and their files."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedjax_pfl.results.intervals import interval_notes, mean_with_interval
from fedjax_pfl.results.model_names import TRAINED
from fedjax_pfl.results.notes import grouped_by_column, over
from fedjax_pfl.results.table import BOLD, Column, Table
from fedjax_pfl.utils.metric_names import ACCURACY, Measure

from ..cli.algorithms import OWN
from ..cli.parsing import CONFLICT, SETTINGS
from ..figures.lines import number
from ..outputs import run_files
from ..outputs.comparison_table import COPIES
from .axes import is_of_training, setting_words
from .pictures import picture

if TYPE_CHECKING:
    import pandas as pd  # slow imports: only where they are used


@dataclass(frozen=True)
class Outcome:
    """One algorithm with one setting.

    Attributes:
      algorithm: its name.
      setting: value by name of the grid.
      seeds: of its runs.
      validation, test: the task's main metric, accuracies in percent, by seed, as ranked.
      clients: ids of the clients of the mean test accuracy.
      remarks: its result's remarks.
      measure: that metric.
      by_client: validation and test scores of each client, [S, N] each.
      trained: test score of copies after one further local training, by seed, if they are scored.
    """

    algorithm: str
    setting: dict[str, str]
    seeds: tuple[int, ...]
    validation: np.ndarray
    test: np.ndarray
    clients: tuple[int, ...] = ()
    remarks: tuple[str, ...] = ()
    measure: Measure = ACCURACY
    by_client: tuple[np.ndarray, np.ndarray] | None = None
    trained: np.ndarray | None = None

    @property
    def words(self) -> str:
        """Its setting in words, "-" if it has none."""
        return ", ".join(f"{name}={value}" for name, value in self.setting.items()) or "-"


def ranked(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Rank by algorithm, the best mean validation score first; NaN last."""
    order = list(dict.fromkeys(one.algorithm for one in outcomes))

    def key(one: Outcome) -> tuple[int, float]:
        mean = one.validation.mean()
        worse = -one.measure.toward(mean) if np.isfinite(mean) else np.inf
        return order.index(one.algorithm), worse

    return sorted(outcomes, key=key)


def table(outcomes: Sequence[Outcome]) -> Table:
    """Return a ranked row per setting, with each algorithm's choice in bold."""
    measure, order = outcomes[0].measure, ranked(outcomes)
    chosen = best(outcomes)
    columns = [
        Column("algorithm", "Algorithm"),
        Column("setting", "Setting", left=True),
        Column("validation", measure.heading("Validation")),
        Column("test", measure.heading("Test")),
        Column("trained", measure.heading("Trained")),
        Column("clients", "Mean over", left=True),
    ]
    rows = [
        {
            "algorithm": one.algorithm,
            "setting": one.words,
            "validation": mean_with_interval(one.validation, measure),
            "test": mean_with_interval(one.test, measure),
            "trained": "" if one.trained is None else mean_with_interval(one.trained, measure),
            "clients": over(one.clients),
        }
        for one in order
    ]
    emphasis = {
        (k, column.key): BOLD
        for k, one in enumerate(order)
        if any(one is other for other in chosen)
        for column in columns
    }
    left_out = ["clients"] if len({one.clients for one in outcomes}) == 1 else []
    left_out += ["trained"] if all(one.trained is None for one in outcomes) else []
    return Table(columns, rows, emphasis=emphasis).without(left_out)


def footnotes(outcomes: Sequence[Outcome], data: Sequence[str] = ()) -> list[str]:
    """Return the notes below the table, a line each.

    Args:
      data: names of the grid that change the data.
    """
    remarks = {(one.words, one.algorithm): one.remarks for one in ranked(outcomes)}
    notes = [*at_the_edge(outcomes), *grouped_by_column(remarks, "All settings")]
    if len({one.clients for one in outcomes}) > 1:
        notes.append(
            "Rows are means over different clients: where these differ, their accuracies and "
            "their order can't be compared."
        )
    if data:
        notes.append(
            f"{', '.join(data)} changes the data: rows that differ in it solve different problems, "
            "and their order shows which is easier."
        )
    several = ((one.validation, one.test, one.trained) for one in outcomes)
    scores = [values for own in several for values in own if values is not None]
    notes += [COPIES[TRAINED]] * any(one.trained is not None for one in outcomes)
    return notes + interval_notes(scores, *outcomes[0].measure.range)


def at_the_edge(outcomes: Sequence[Outcome]) -> list[str]:
    """Return a warning per chosen number that is the smallest or largest one tried.

    There is none where another number is as good, nor for flags on data, participation or uploads:
    these change the problem, not how well it is solved.
    """
    notes = []
    for chosen in best(outcomes):
        settings = [one for one in outcomes if one.algorithm == chosen.algorithm]
        equals = [one for one in settings if one.validation.mean() == chosen.validation.mean()]
        for name, value in chosen.setting.items():
            if not is_of_training(name):
                continue
            numbers = [number(one.setting[name]) for one in settings]
            tried = {one for one in numbers if one is not None}
            if None in numbers or len(tried) < 2:
                continue
            edges = {min(tried): "smallest", max(tried): "largest"}
            best_value = float(value)
            is_best = {number(one.setting[name]) for one in equals} == {best_value}
            if is_best and best_value in edges:
                notes.append(
                    f"{chosen.algorithm}: the best {name}, {value}, is the "
                    f"{edges[best_value]} that was tried. Values beyond it may be better."
                )
    return notes


def best(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Return the chosen setting of each algorithm."""
    chosen: dict[str, Outcome] = {}
    for one in ranked(outcomes):
        chosen.setdefault(one.algorithm, one)
    return list(chosen.values())


def best_per_client(outcomes: Sequence[Outcome]) -> np.ndarray:
    """Return an algorithm's test scores [S] if each client takes the setting that is best on its
    own validation samples, mean over seeds.

    Clients without validation samples have the setting that is chosen for all. Ties go to the
    setting that ranks higher for all.
    """
    order = ranked(outcomes)
    known = [one.by_client for one in order if one.by_client is not None]
    measure, tests = order[0].measure, np.stack([test for _, test in known])  # [K, S, N]
    own = measure.toward(np.stack([validation.mean(axis=0) for validation, _ in known]))
    at = np.where(np.isnan(own), -np.inf, own).argmax(axis=0)  # the first of the best
    return np.nanmean(tests[at, :, np.arange(len(at))], axis=0)


def best_on_test(outcomes: Sequence[Outcome]) -> Outcome:
    """Return the setting with the best mean test score, for comparison only."""
    return max(outcomes, key=lambda one: np.nan_to_num(one.measure.toward(one.test.mean()),
                                                       nan=-np.inf))  # fmt: skip


def all_chosen(outcomes: Sequence[Outcome]) -> str:
    """Return a flagfile with all algorithms, each with its chosen values of the grid.

    Flags that can't differ between algorithms of one run are left out where their choices do.
    """
    chosen = best(outcomes)
    lines = [f"--algorithms={','.join(one.algorithm for one in chosen)}"]
    names = list(dict.fromkeys(name for one in chosen for name in one.setting))
    for name in names:
        values = {one.algorithm: one.setting[name] for one in chosen if name in one.setting}
        if "." in name:
            lines += [f"--set={name}={value}" for value in values.values()]
        elif name in OWN:
            lines += [f"--set={one}.{name}={value}" for one, value in values.items()]
        elif len(set(values.values())) == 1:
            lines += setting_words({name: next(iter(values.values()))})
        else:
            lines.append(f"# {name} {CONFLICT}:")
            lines += [f"#   {one}: {value}" for one, value in values.items()]
    return "\n".join(lines) + "\n"


HEAD = "# The sweep's flags, then its choices. Give --import_file again: no file runs code."


def write(
    output: Path,
    outcomes: Sequence[Outcome],
    rank_by: str,
    heading: Sequence[str],
    data: Sequence[str],
    words: Sequence[str] = (),
) -> None:
    """Write `sweep.md`, `sweep.csv`, the sweep's own flags with all algorithms' choices in
    `settings.flags` and, by algorithm, a picture if there is any.

    `heading` are sentences on all settings, `data` is that of `footnotes`; `words` are the sweep's
    flags.
    """
    measure = outcomes[0].measure
    about = (
        f"Ranked by the mean over clients and seeds of the validation {measure.label} ({rank_by}"
        f"{'' if measure.higher else ', lower is better'}); test "
        f"{measure.label} is not used to choose. ±: half of the 95 % interval over seeds."
    )
    text = [*heading, about, table(outcomes).to_markdown(), *footnotes(outcomes, data)]
    run_files.write_text(output / "sweep.md", "\n\n".join(text) + "\n")
    settings = "".join(f"{word}\n" for word in (HEAD, *words))
    run_files.write_text(output / SETTINGS, settings + all_chosen(outcomes))
    numbers = frame(outcomes)
    run_files.write_csv(output / "sweep.csv", numbers)
    for algorithm, mine in numbers.groupby("algorithm", sort=False):
        figure = picture(mine, str(algorithm), measure)
        if figure is not None:
            run_files.write_picture(output / f"{algorithm}.png", figure)


def frame(outcomes: Sequence[Outcome]) -> "pd.DataFrame":
    """Return a row for each setting and seed: algorithm, names of the grid, seed and scores."""
    import pandas as pd

    measure = outcomes[0].measure
    end = "_percent" if measure.fraction else f"_{measure.name}"
    frames = []
    for one in outcomes:
        scores = {"validation": one.validation, "test": one.test, "trained_test": one.trained}
        known = {f"{name}{end}": values for name, values in scores.items() if values is not None}
        facts = {"algorithm": one.algorithm, **one.setting}
        frames.append(pd.DataFrame({"seed": one.seeds, **known}).assign(**facts))
    names = dict.fromkeys(name for one in outcomes for name in one.setting)
    numbers = pd.concat(frames, ignore_index=True)
    scored = [name for name in numbers if str(name).endswith(end)]
    return numbers.reindex(columns=["algorithm", *names, "seed", *scored])
