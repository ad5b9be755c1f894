"""What a sweep writes: the ranking, the numbers, a flagfile and pictures."""

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from experiments import outputs
from experiments.sweep_pictures import picture


@dataclass(frozen=True)
class Outcome:
    """One method with one setting.

    Attributes:
      method: its name.
      setting: value by name of the grid.
      validation, test: accuracy in percent by seed, as ranked.
    """

    method: str
    setting: dict[str, str]
    validation: np.ndarray
    test: np.ndarray


def ranked(found: Sequence[Outcome]) -> list[Outcome]:
    """Method by method, the best mean validation accuracy first; not-a-number last."""
    order = list(dict.fromkeys(one.method for one in found))

    def key(one: Outcome):
        mean = one.validation.mean()
        return order.index(one.method), -mean if np.isfinite(mean) else np.inf

    return sorted(found, key=key)


def table(found: Sequence[Outcome]) -> str:
    """Markdown: every setting, ranked; the chosen one of each method in bold."""

    def number(values: np.ndarray) -> str:
        half = outputs.interval(values)
        return f"{values.mean():.2f}" + ("" if half is None else f" ± {half:.2f}")

    lines = ["| Method | Setting | Validation % | Test % |", "| --- | --- | ---: | ---: |"]
    seen = set()
    for one in ranked(found):
        setting = ", ".join(f"{name}={value}" for name, value in one.setting.items()) or "-"
        row = [one.method, setting, number(one.validation), number(one.test)]
        if one.method not in seen:
            seen.add(one.method)
            row = [f"**{cell}**" for cell in row]
        lines.append(f"| {' | '.join(row)} |")
    return "\n".join(lines) + "\n"


def chosen_flags(found: Sequence[Outcome]) -> str:
    """A flagfile that repeats the chosen settings, method by method."""
    lines, seen = [], set()
    for one in ranked(found):
        if one.method in seen:
            continue
        seen.add(one.method)
        lines.append(f"# {one.method}: validation {one.validation.mean():.2f} %")
        common = [f"--{n}={v}" for n, v in one.setting.items() if "." not in n]
        own = [f"--set={n}={v}" for n, v in one.setting.items() if "." in n]
        # Flags without a method's name can only be given once for all methods.
        lines += own + [word if len(seen) == 1 else f"# {word}" for word in common]
    return "\n".join(lines) + "\n"


def write(output: Path, found: Sequence[Outcome], rank_by: str) -> None:
    """Writes `sweep.md`, `sweep.csv`, `chosen.flags` and a picture of each method that has one."""
    said = (
        f"Ranked by the mean over clients and seeds of the validation accuracy ({rank_by}); test "
        "accuracy chooses nothing. ±: half of the 95 % interval over seeds."
    )
    outputs.write_text(output / "sweep.md", f"{said}\n\n{table(found)}")
    outputs.write_text(output / "chosen.flags", chosen_flags(found))
    names = list(dict.fromkeys(name for one in found for name in one.setting))
    with outputs.aside(output / "sweep.csv") as part, part.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["method", *names, "run", "validation_percent", "test_percent"])
        for one in found:
            values = [one.setting.get(name, "") for name in names]
            for k, (validation, test) in enumerate(zip(one.validation, one.test, strict=True)):
                writer.writerow([one.method, *values, k, validation, test])
    for method in dict.fromkeys(one.method for one in found):
        figure = picture([one for one in found if one.method == method], method)
        if figure is not None:
            outputs.write_picture(output / f"{method}.png", figure)
