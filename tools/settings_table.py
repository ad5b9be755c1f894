"""Table of the papers' settings, generated from the presets.

`python -m tools.settings_table docs/settings` updates the tables between the marks of its pages.
"""

from collections.abc import Iterator, Sequence
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import numpy as np

import fedjax_pfl as pfl
from experiments.cli import data_flags, flags, presets, shell
from experiments.cli.config import ExperimentConfig
from experiments.outputs import run_files
from experiments.reproduction.datasets import UNEQUAL, blank
from fedjax_pfl.models.networks import make_model
from fedjax_pfl.models.task import as_task
from tools import arguments

PAPERS = ("feddwa", "waffle", "cwfedavg", "spfl", "plga", "pfedla")


class Preset(NamedTuple):
    """A flagfile and its first comment.

    Attributes:
      name: such as "feddwa/table1_pathological_cifar10".
      title, paper, note: of the comment's parts.
      args: its flags.
    """

    name: str
    title: str
    paper: str
    note: str
    args: ExperimentConfig

    def flags(self) -> dict[str, str]:
        """Return the text of flags by name, in the order of --help."""
        args = self.args
        names = [n for g in ("data", "rule", "training", "run") for n in args.by_group()[g]]
        return {name: _shown(name, args[name].value) for name in names if args[name].present}


def _shown(name: str, value: Any) -> str:
    if name in flags.repeated():
        return " ".join(f"--{name}={word}" for word in value)
    value = ",".join(value) if isinstance(value, list) else value
    value = str(value).lower() if isinstance(value, bool) else value
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return f"--{name}={text}"


def of_paper(paper: str) -> Iterator[Preset]:
    """Return the presets of a paper, table by table."""
    for name in presets.complete_presets():
        if name.startswith(f"{paper}/"):
            yield read(name)


def read(name: str, *words: str) -> Preset:
    """Read a preset with the flagfiles that it includes, and further flags."""
    parts = {"Title": []}
    for line in presets.file(name).read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            break
        text = line.removeprefix("#").strip()
        mark = next((m for m in ("Paper", "Note") if text.startswith(f"{m}: ")), None)
        if mark:
            parts[mark] = []
        parts[list(parts)[-1]].append(text.removeprefix(f"{mark}: "))
    messages = [" ".join(parts.get(mark, [])) for mark in ("Title", "Paper", "Note")]
    args = flags.parse(["run", f"--preset={name}", *words])
    return Preset(name, *messages, args)


def parameters(args: ExperimentConfig, dataset: pfl.Dataset) -> int:
    """Return the number of trainable parameters."""
    options = {"vocab_size": dataset.vocab_size} | args.model_options
    named = (args.model, args.initializer, args.dtype, tuple(sorted(options.items())))
    return _counted(dataset.input_shape, dataset.num_classes, *named)


@cache
def _counted(shape: tuple[int, ...], classes: int, model: str, initializer: str, dtype: str,
             options: tuple) -> int:  # fmt: skip
    task = as_task(make_model(model, shape, classes, initializer, **dict(options)), dtype)
    kind = np.float32 if dict(options)["vocab_size"] is None else np.int32
    sample = jax.ShapeDtypeStruct((1, *shape), kind)
    shapes = jax.eval_shape(partial(task.initial_model, jax.random.key(0)), sample)
    return sum(leaf.size for leaf in jax.tree.leaves(shapes["params"]))


def sizes(preset: Preset) -> str:
    """Return samples and classes of the clients, and parameters, at full size."""
    dataset = blank(preset.args.dataset)
    partition = data_flags.make_partition(preset.args, dataset)
    counted = (dataset.labels, dataset.num_classes)
    held = sum(partition.class_counts(*counted, split) for split in ("train", "test"))
    numbers = [_spread(partition.sizes(split)) for split in ("train", "test")]
    classes = _spread((held > 0).sum(axis=1), ".1f")
    count = parameters(preset.args, dataset)
    equal = " if all were equal" * (preset.args.dataset in UNEQUAL)
    return f"{numbers[0]} + {numbers[1]} samples; {classes} classes{equal}; {count:,} parameters"


def _spread(numbers: np.ndarray, form: str = ",.0f") -> str:
    low, high = int(numbers.min()), int(numbers.max())
    return f"{low:,}" if low == high else f"{low:,} to {high:,} (mean {numbers.mean():{form}})"


def table(paper: str) -> str:
    """Return Markdown: the flags common to a paper's presets, and a row for each preset."""
    rows = list(of_paper(paper))
    given = [row.flags() for row in rows]
    shared = {name: text for name, text in given[0].items()
              if all(other.get(name) == text for other in given)}  # fmt: skip
    lines = [f"All of them: `{' '.join(shared.values())}`", ""]
    columns = "[Paper](README.md#columns) | [Here](README.md#columns)"
    lines += [f"| Setting | Preset and its other flags | {columns} |", "|---|---|---|---|"]
    for row, one in zip(rows, given, strict=True):
        own = " ".join(text for name, text in one.items() if shared.get(name) != text)
        title = f"{row.title}; {row.note}" if row.note else row.title
        title = title.replace("*", r"\*")
        lines.append(f"| {title} | **{row.name}** `{own}` | {row.paper} | {sizes(row)} |")
    return "\n".join(lines)


def filled(text: str, paper: str) -> str:
    """Return the text of a paper's page with the table updated between its marks."""
    first, last = f"<!-- presets: {paper} -->\n", f"\n<!-- end of presets: {paper} -->"
    head, _, rest = text.partition(first)
    _, found, tail = rest.partition(last)
    if not found:
        raise pfl.InputError(f"The page has no marks {first.strip()} and {last.strip()}.")
    return head + first + table(paper) + last + tail


def main(argv: Sequence[str] | None = None) -> int:
    """Update the pages of a folder."""
    folder = arguments.parse("settings_table", __doc__, argv, ["folder"]).folder
    for paper in PAPERS:
        path = folder / f"{paper}.md"
        run_files.write_text(path, filled(path.read_text(encoding="utf-8"), paper))
    return 0


if __name__ == "__main__":
    shell.leave(main)
