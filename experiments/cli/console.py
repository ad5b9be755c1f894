"""The output of `experiments.run`: catalogue and tables, for terminals and logs."""

import inspect
from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table as Framed

import fedjax_pfl as pfl
from fedjax_pfl.results.table import Table

from . import plugins, presets

# Columns left out one by one where a terminal is too narrow; others are always shown.
OPTIONAL_COLUMNS = (
    "compile_seconds", "std_over_clients", "best", "own_validated", "validated", "gflop_run",
    "diverged_clients", "pooled", "gflop", "seconds_per_round", "win_rate fedavg", "harmed fedavg",
    "mb_up", "mb_down", "win_rate local", "harmed local", "worst_decile",
)  # fmt: skip


def first_line(documented) -> str:
    """Return the first line of a written docstring, not an inherited or generated one."""
    text = vars(documented).get("__doc__") if inspect.isclass(documented) else documented.__doc__
    return (text or "").strip().partition("\n")[0]


def listed(heading: str, entries: Iterable[tuple[str, str, Mapping[str, Any]]]) -> list[str]:
    """Return lines with names, what they mean, and their options that have a default."""
    lines = [heading]
    for name, text, options in entries:
        lines.append(f"  {name:20} {text}".rstrip())
        words = _values(options)
        lines += [f"  {'':20} {words}"] if words else []
    return lines


def _values(options: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in options.items() if value is not None)


def catalogue() -> str:
    """Return the text of --list."""
    usual = pfl.data.COMMON_OPTIONS
    rules = {
        name: {k: v for k, v in pfl.data.rule_options(name).items() if usual.get(k, ()) != v}
        for name in sorted(pfl.data.RULES)
    }
    named, options_of = sorted(pfl.core.ALGORITHMS.items()), pfl.options.options_of
    lines = listed(
        "Algorithms (--algorithms), with their hyperparameters (--set=ALGORITHM.NAME=VALUE):",
        [(name, first_line(one), {f.name: f.default for f in fields(one)}) for name, one in named],
    )
    own = ", ".join(pfl.options.SETTABLE)
    lines.append(f"  Each also takes local training of its own (--set=ALGORITHM.NAME=VALUE): {own}")
    sources = sorted(pfl.data.DATASETS.items())
    lines += listed("\nData sets (--dataset):", [(n, one.description, {}) for n, one in sources])
    scalings = [(name, meaning, {}) for name, meaning in pfl.data.SCALINGS.items()]
    lines += listed("\nInput scalings (--input_scaling):", scalings)
    lines += listed(
        f"\nPartition rules (--partition); all take {_values(usual)}, train_samples, test_samples:",
        [(name, first_line(pfl.data.RULES[name].plan), own) for name, own in rules.items()],
    )
    models = [(name, first_line(one), {}) for name, one in sorted(pfl.models.MODELS.items())]
    lines += listed("\nModels (--model):", models)
    lines += listed(
        "\nOptimizers (--optimizer), with their options (--optimizer_option=NAME=VALUE):",
        [(n, _values(options_of(one)), {}) for n, one in pfl.training.OPTIMIZERS.items()],
    )
    lines += listed(
        "\nLearning rate schedules (--lr_schedule), with theirs (--lr_schedule_option=NAME=VALUE):",
        [(n, first_line(one), options_of(one)) for n, one in pfl.training.LR_SCHEDULES.items()],
    )
    lines += ["\nPresets (--preset=NAME):", *presets.catalogue()]
    examples = [(name, about, {}) for name, about in plugins.examples().items()]
    lines += listed(f"\nExamples (--import_file=example:NAME), in {plugins.EXAMPLES}:", examples)
    return "\n".join(lines)


def _framed(table: Table) -> Framed:
    framed = Framed(box=SIMPLE_HEAD)
    heading, *body = table.cells
    for k, name in enumerate(heading):
        short = name.replace(" ", "\n", 1) if len(name) > 8 else name
        framed.add_column(short, justify="left" if k == 0 else "right", no_wrap=True)
    for line in body:
        framed.add_row(*line)
    return framed


def print_table(console: Console, table: Table) -> None:
    """Print a table, framed on a terminal, elsewhere as aligned text."""
    if console.is_terminal:
        console.print(_framed(table))
    else:
        print(table.to_text())


def print_comparison(console: Console, table: Table) -> None:
    """Print the comparison of algorithms; on a terminal, as many columns as fit."""
    if not console.is_terminal:
        print_table(console, table)
        return
    marks = {"diverged_clients"} if any(row["diverged_clients"] for row in table.rows) else set()
    optional = [key for key in OPTIONAL_COLUMNS if key not in marks]
    endless = console.options.update(max_width=1000)
    for count in range(len(optional) + 1):
        smaller = table.without(optional[:count])
        framed = _framed(smaller)
        if Measurement.get(console, endless, framed).maximum <= console.width:
            break
    console.print(framed)
    if left_out := len(table.cells[0]) - len(smaller.cells[0]):
        print(f"({left_out} more columns in comparison.md)")
