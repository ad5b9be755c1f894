"""New clients of a run: their flags, scores and table."""

import contextlib
import csv
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

import fedjax_pfl as pfl
from fedjax_pfl.results.result_files import damaged
from fedjax_pfl.results.table import Table
from fedjax_pfl.utils.conversions import decimal
from fedjax_pfl.utils.errors import shown
from fedjax_pfl.utils.metric_names import ACCURACY

from ..outputs.run_files import atomic_write, write_text
from .config import ExperimentConfig

FILE = "new_clients.csv"
COLUMNS = ("seed", "client", "part_of_samples", "local_steps")  # and the measure


@dataclass(frozen=True)
class NewClients:
    """New clients, and how they are scored after the run."""

    federation: pfl.Federation
    steps: tuple[int, ...]
    fractions: tuple[float, ...]


def split_new_clients(
    args: ExperimentConfig, federation: pfl.Federation
) -> tuple[pfl.Federation, NewClients | None]:
    """(the federation of the clients that take part, the new clients or None).

    Raises:
      pfl.InputError: more than there are, or steps or samples that can't be.
    """
    if not args.new_clients:
        for name in ("new_client_steps", "new_client_samples"):
            if args[name].value != args[name].default:
                raise pfl.InputError(f"--{name} needs --new_clients.")
        return federation, None
    read = [decimal(word) for word in args.new_client_steps]
    steps = [number for number in read if number is not None]
    fractions = []
    for word in args.new_client_samples:
        with contextlib.suppress(ValueError):
            fractions.append(float(word))
    if not steps or None in read:
        words = ",".join(args.new_client_steps)
        raise pfl.InputError(
            f"--new_client_steps must be whole numbers such as 0,5, got {shown(words)}."
        )
    if len(fractions) < len(args.new_client_samples) or not all(0 < f <= 1 for f in fractions):
        words = ",".join(args.new_client_samples)
        raise pfl.InputError(
            f"--new_client_samples must be fractions in (0, 1], got {shown(words)}."
        )
    federation, new = pfl.engine.split_new_clients(federation, args.new_clients)
    schedule, capacity = new.schedule, new.data.train.capacity
    replace(schedule, steps=max(steps)).check_counts(capacity)
    return federation, NewClients(new, tuple(steps), tuple(fractions))


def score(
    new_clients: NewClients,
    result: pfl.Result,
    own: Mapping[str, Any],
) -> list[tuple[int, int, float, int, float]]:
    """Rows of `COLUMNS` and the task's headline: every seed, client, part of its samples and number
    of local steps.

    `own` are the algorithm's own options of local training.
    """
    federation = new_clients.federation
    federation = federation.with_training(**own) if own else federation
    scores = pfl.score_new_clients(
        result.final, federation, steps=new_clients.steps, fractions=new_clients.fractions
    )
    ids: list[int] = np.asarray(new_clients.federation.data.ids).tolist()
    rows = itertools.product(result.seeds, new_clients.fractions, new_clients.steps, ids)
    return [
        (seed, client, part, steps, float(scores[at]))
        for at, (seed, part, steps, client) in zip(np.ndindex(scores.shape), rows, strict=True)
        if np.isfinite(scores[at])
    ]


def write(folder: Path, rows: Iterable[Sequence], measure: pfl.models.Measure = ACCURACY) -> None:
    """Writes an algorithm's rows."""
    with atomic_write(folder / FILE) as part, part.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow((*COLUMNS, measure.name))
        writer.writerows(rows)


def _rows(path: Path, measure: pfl.models.Measure) -> list[dict[str, str]]:
    """An algorithm's rows.

    Raises:
      InputError: they can't be read as what `write` writes.
    """
    try:
        with path.open(newline="") as file:
            reader = csv.DictReader(file)
            rows = list(reader)
        if tuple(reader.fieldnames or ()) != (*COLUMNS, measure.name):
            raise ValueError("its heading is another")
        for row in rows:
            numbers = [float(row[column]) for column in (*COLUMNS, measure.name)]
            if measure.fraction and not 0 <= numbers[-1] <= 1:
                raise ValueError(f"{numbers[-1]} is no {measure.label}")
    except (OSError, ValueError, KeyError, TypeError, csv.Error) as error:
        raise damaged(path, f"it can't be read as a table of new clients ({error})") from error
    return rows


def rows_of(folders: Iterable[Path], measure: pfl.models.Measure) -> list[list[str]]:
    """The rows of several folders of an algorithm.

    Raises:
      InputError: as of `_rows`.
    """
    return [list(row.values()) for folder in folders for row in _rows(folder / FILE, measure)]


def write_table(folder: Path, names: Iterable[str], measure: pfl.models.Measure = ACCURACY) -> str:
    """Writes and returns the table of new clients: mean over clients and seeds, by steps."""
    means: dict[str, dict[tuple[str, str], list[float]]] = {}
    for name in names:
        for row in _rows(folder / name / FILE, measure):
            at = row["part_of_samples"], row["local_steps"]
            means.setdefault(name, {}).setdefault(at, []).append(float(row[measure.name]))
    points = list(dict.fromkeys(at for found in means.values() for at in found))
    heading = [
        f"{steps} step{'' if steps == '1' else 's'}, {float(part):.0%} of samples"
        for part, steps in points
    ]
    body = []
    for name, found in means.items():
        cells = [
            measure.shown(measure.scale * float(np.mean(found[at]))) if at in found else "-"
            for at in points
        ]
        body.append([name, *cells])
    table = Table.of_cells(["Algorithm", *heading], body).to_markdown()
    text = f"{measure.title} of new clients, which took part in no round; mean over them and seeds:"
    write_text(folder / "new_clients.md", f"{text}\n\n{table}\n")
    return f"{text}\n\n{table}"
