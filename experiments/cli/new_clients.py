"""New clients of a run: their flags, scores and table."""

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import fedjax_pfl as pfl
from fedjax_pfl.results.result_files import damaged
from fedjax_pfl.results.table import Table
from fedjax_pfl.utils.conversions import decimal
from fedjax_pfl.utils.errors import shown
from fedjax_pfl.utils.metric_names import ACCURACY

from ..outputs.run_files import NEW_CLIENTS, write_text
from .config import ExperimentConfig

if TYPE_CHECKING:
    import pandas as pd  # slow import: only where it is used

TABLE = "new_clients.md"
AXES = ("seed", "part_of_samples", "local_steps", "client")
COLUMNS = ["seed", "client", "part_of_samples", "local_steps"]  # and the measure


@dataclass(frozen=True)
class NewClients:
    """New clients, and how they are scored after the run."""

    federation: pfl.Federation
    steps: tuple[int, ...]
    fractions: tuple[float, ...]


def split_new_clients(
    args: ExperimentConfig, federation: pfl.Federation
) -> tuple[pfl.Federation, NewClients | None]:
    """Return (the federation of participating clients, the new clients or None).

    Raises:
      pfl.InputError: more than there are, or invalid steps or samples.
    """
    if not args.new_clients:
        for name in ("new_client_steps", "new_client_samples"):
            if args[name].value != args[name].default:
                raise pfl.InputError(f"--{name} needs --new_clients.")
        return federation, None
    read = [decimal(word) for word in dict.fromkeys(args.new_client_steps)]
    steps = [number for number in read if number is not None]
    fractions, samples = [], dict.fromkeys(args.new_client_samples)
    for word in samples:
        with contextlib.suppress(ValueError):
            fractions.append(float(word))
    if not steps or None in read:
        words = ",".join(args.new_client_steps)
        raise pfl.InputError(
            f"--new_client_steps must be whole numbers such as 0,5, got {shown(words)}."
        )
    if len(fractions) < len(samples) or not all(0 < f <= 1 for f in fractions):
        words = ",".join(args.new_client_samples)
        raise pfl.InputError(
            f"--new_client_samples must be fractions in (0, 1], got {shown(words)}."
        )
    federation, new = pfl.split_new_clients(federation, args.new_clients)
    schedule, capacity = new.schedule, new.data.train.capacity
    replace(schedule, steps=max(steps)).check_counts(capacity)
    return federation, NewClients(new, tuple(steps), tuple(fractions))


def score(new_clients: NewClients, result: pfl.Result, own: Mapping[str, Any]) -> "pd.DataFrame":
    """Return the task's main metric by seed, client, part of its samples and number of local steps.

    `own` are the algorithm's own options of local training.
    """
    import pandas as pd

    federation = new_clients.federation
    federation = federation.with_training(**own) if own else federation
    steps, fractions = new_clients.steps, new_clients.fractions
    scores = pfl.score_new_clients(result.final, federation, steps=steps, fractions=fractions)
    places = [result.seeds, fractions, steps, np.asarray(federation.data.ids)]
    index = pd.MultiIndex.from_product(places, names=AXES)
    name = result.measure().name
    rows = pd.DataFrame({name: np.asarray(scores, float).ravel()}, index).reset_index()
    return rows.loc[np.isfinite(rows[name]), [*COLUMNS, name]]


def read_rows(folder: Path, measure: pfl.models.Measure) -> "pd.DataFrame":
    """Read an algorithm's new_clients.csv, its cells as text.

    Raises:
      InputError: they can't be read as those of `score`.
    """
    import pandas as pd

    path = folder / NEW_CLIENTS
    try:
        rows = pd.read_csv(path, dtype=str)
        if list(rows) != [*COLUMNS, measure.name]:
            raise ValueError("its heading is another")
        values = rows.astype(float)
        scores = values[measure.name]
        if values.isna().any(axis=None) or (measure.fraction and not scores.between(0, 1).all()):
            raise ValueError(f"a value is not a {measure.label}")
    except (OSError, ValueError) as error:
        raise damaged(path, f"it can't be read as a table of new clients ({error})") from error
    return rows


def write_table(folder: Path, names: Iterable[str], measure: pfl.models.Measure = ACCURACY) -> None:
    """Write the table of new clients: mean over clients and seeds, by steps."""
    import pandas as pd

    rows = pd.concat({name: read_rows(folder / name, measure) for name in names}, names=["name"])
    rows = rows.astype({"part_of_samples": float, "local_steps": int, measure.name: float})
    means: Any = rows.groupby(["name", "part_of_samples", "local_steps"], sort=False)[measure.name]
    cells = means.mean().unstack(["part_of_samples", "local_steps"], sort=False)
    heading = [
        f"{steps} step{'' if steps == 1 else 's'}, {100 * part:g} % of samples"
        for part, steps in cells
    ]
    body = [
        [name, *("-" if np.isnan(one) else measure.shown(measure.scale * one) for one in means)]
        for name, *means in cells.itertuples()
    ]
    table = Table.of_cells(["Algorithm", *heading], body).to_markdown()
    text = f"{measure.title} of new clients, which took part in no round; mean over them and seeds:"
    write_text(folder / TABLE, f"{text}\n\n{table}\n")
