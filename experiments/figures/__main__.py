"""Figures from finished runs: `python -m experiments.figures --help`."""

if __name__ == "__main__":  # before anything is loaded
    from ..cli.start import launch

    launch("figures")

import inspect
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import absl.flags
from matplotlib.colors import is_color_like

import fedjax_pfl as pfl
from fedjax_pfl.data.atomic_files import writing
from fedjax_pfl.results.plots import with_colours
from fedjax_pfl.utils.errors import InputError, require_name

from ..cli import plugins, shell
from ..cli.flag_groups import Group, new_path
from ..cli.parsing import FlagValues, parse_words
from ..cli.start import called
from ..outputs import line_styles
from ..outputs.run_files import atomic_write, write_csv
from . import (  # noqa: F401 - their figures are registered on import
    accuracy,
    comparison,
    matrices,
    settings,
)
from .drawing import FIGURES, Drawing
from .loading import find
from .selection import read_labels, with_labels

USAGE = f"""\
Draw a figure from finished runs of {called("run")}; docs/figures.md has examples of all figures.

  {called("figures")} --list
  {called("figures")} accuracy/rounds --runs=runs/digits --output=rounds.png
  {called("figures")} accuracy/setting --runs='runs/k*' --x=feddwa.top_k \\
      --output=top_k.png --data=top_k.csv

--runs takes folders of an algorithm, of a comparison (all its algorithms), or folders above
those. Options of the figure (--list shows them): --NAME=VALUE."""
FORMATS = (".png", ".pdf", ".svg")


def parse(argv: Sequence[str]) -> tuple[str | None, absl.flags.FlagValues]:
    """Return (name of the figure, flag values); all options of figures are text flags."""
    values = FlagValues()
    group = Group(values, "figures")
    group.names("runs", [], "folders of finished runs")
    group.names("algorithms", [], "algorithms to draw (default: all)")
    meaning = "a metric of the runs, such as macro_f1 (default: their task's main metric)"
    group.text("metric", None, meaning)
    group.text("output", None, "a new PNG, PDF or SVG file")
    group.text("data", None, "a new CSV file for the numbers")
    meaning = "a title of your own, or 'auto' for what the picture shows (default: none)"
    group.text("title", None, meaning)
    meaning = "width and height in inches, such as 3.5x2.5 (default: the figure's)"
    group.text("size", None, meaning)
    group.text("labels", None, "a file with lines NAME=LABEL for legends (default: names)")
    group.names(
        "colors", [], "colours of algorithms' first lines, such as spfl=#d62728,feddwa=black"
    )
    group.switch("overwrite", False, "replace files of --output and --data that exist")
    group.switch("list", False, "print all figures and their options")
    group.help()
    plugins.define(group)
    group = Group(values, "options")
    known = {name: default for plot in FIGURES.values() for name, default in plot.options.items()}
    for option in known.keys() - set(values):
        define = group.switch if isinstance(known[option], bool) else group.text
        define(option, None, "option of a figure")
    rest, _ = parse_words(values, argv, positional=len(argv))
    if len(rest) > 1:
        raise InputError(f"Give one figure's name, got {', '.join(map(repr, rest))}.")
    return (rest[0] if rest else None), values


def options_given(args: absl.flags.FlagValues) -> dict[str, str]:
    """Return the given options of the figure, as text."""
    present = [flag for flag in args.get_flags_for_module("options") if flag.present]
    return {flag.name: _text(flag.value) for flag in present}


def catalogue() -> str:
    """Return all figures with their options."""
    lines = []
    for name, plot in FIGURES.items():
        options = " ".join(f"{k}={_text(v)}" for k, v in plot.options.items())
        lines += [f"{name:26} {plot.shows}", *([f"{'':26}   {options}"] if options else [])]
    return "\n".join(lines)


def one_figure(name: str) -> str:
    """Return a figure, its options with their defaults, and their description.

    Raises:
      InputError: there is none of that name.
    """
    require_name("figure", name, FIGURES)
    plot = FIGURES[name]
    options = [f"  --{k}={_text(v)}".rstrip() for k, v in plot.options.items()]
    about = inspect.getdoc(plot.draw) or ""
    return "\n".join([f"{name}, {plot.shows}:\n", *options, "", about])


def _text(value: Any) -> str:
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)


def draw(name: str | None, args: absl.flags.FlagValues) -> Drawing:
    """Draw the chosen figure, without writing it.

    Raises:
      InputError: an unknown figure or option, or runs without the data for it.
    """
    if name is None:
        raise InputError("Give the name of a figure, such as accuracy/rounds; --list shows them.")
    require_name("figure", name, FIGURES)
    plot = FIGURES[name]
    options = pfl.data.parse_options(
        options_given(args), plot.options, f"option of figure {name!r}"
    )
    if not args.runs:
        raise InputError(f"{name} is drawn from finished runs: give their folders with --runs=DIR.")
    runs = find(args.runs, args.algorithms, args.metric)
    return plot.draw(runs, **(dict(plot.options) | options))


def finish(drawing: Drawing, title: str | None, size: tuple[float, float] | None) -> str:
    """Set title and size of the picture; return the caption."""
    chart: Any = drawing.figure
    text = " ".join(chart.get_suptitle().split())
    if title is None and chart._suptitle is not None:
        chart._suptitle.remove()
        chart._suptitle = None
    elif title not in (None, "auto"):
        chart.suptitle(title, fontsize=10, wrap=True)
    if size is not None:
        chart.set_size_inches(*size)
    return text


def read_colors(words: Sequence[str]) -> dict[int, str]:
    """Parse words such as spfl=#d62728 to colours by the number of the algorithm's style.

    Raises:
      InputError: a word of another form, an unknown algorithm, or no colour of Matplotlib's.
    """
    result = {}
    for word in words:
        name, _, colour = word.partition("=")
        require_name("algorithm of --colors", name, pfl.core.ALGORITHMS)
        if not is_color_like(colour):
            raise InputError(
                f"--colors takes NAME=COLOUR with a colour such as red or #d62728, got {word!r}."
            )
        result[line_styles.number(name)] = colour
    return result


def inches(text: str | None) -> tuple[float, float] | None:
    """Parse width and height, such as 3.5x2.5.

    Raises:
      InputError: other words, or numbers outside 1..50.
    """
    if text is None:
        return None
    try:
        width, height = (float(word) for word in text.lower().split("x"))
    except ValueError:
        width = height = 0.0
    if not (1 <= width <= 50 and 1 <= height <= 50):
        raise InputError(f"--size must be WIDTHxHEIGHT in inches, 1 to 50 each, got {text!r}.")
    return width, height


def write(drawing: Drawing, output: Path | None, data: Path | None) -> None:
    """Write the picture and the numbers."""
    for path in filter(None, (output, data)):
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
    if data is not None:
        write_csv(data, drawing.numbers)
    if output is not None:
        with atomic_write(output) as part:
            drawing.figure.savefig(part, format=output.suffix[1:].lower())


@shell.script()
def main(argv: list[str]) -> int:
    """Run the command."""
    name, args = parse(argv)
    if args["help"].value:
        print(f"{USAGE}\n")
        if name is not None:
            print(f"Options of {one_figure(name)}\n")
        print(args.module_help("figures"))
        return 0
    if args["list"].value:
        print(catalogue())
        return 0
    remedy = None if args.overwrite else ": choose another, or give --overwrite"
    output = new_path("output", args.output, FORMATS, remedy)
    data = new_path("data", args.data, (".csv",), remedy)
    if output is None and data is None and name in FIGURES:
        raise InputError("Give a new file for the picture with --output=FILE.png.")
    size = inches(args.size)
    with with_labels(read_labels(args.labels)), with_colours(read_colors(args.colors)):
        drawing = draw(name, args)
    caption = finish(drawing, args.title, size)
    write(drawing, output, data)
    if caption:
        print(f"caption: {caption}", file=sys.stderr)
    for path in filter(None, (output, data)):
        print(path)
    return 0
