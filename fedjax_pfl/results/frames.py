"""Results as an xarray data set, a pandas table, or HTML for a notebook."""

import html
from typing import TYPE_CHECKING, Any

import numpy as np

from fedjax_pfl.results import result_table
from fedjax_pfl.results.model_names import PERSONALIZED
from fedjax_pfl.results.result_scores import ResultScores

if TYPE_CHECKING:
    import pandas as pd  # slow imports: only where they are used
    import xarray as xr


RUNS = ("seed", "setting")


def to_xarray(result: ResultScores) -> "xr.Dataset":
    """Convert a result; see `Result.to_xarray`."""
    import xarray as xr

    rounds, clients = np.arange(1, result.rounds + 1), np.asarray(result.client_ids)
    scores = {
        name: ((*RUNS, "eval_round", "client"), values) for name, values in result.scores.items()
    }
    records = {
        name: ((*RUNS, "round", "client"), values) for name, values in result.clients.items()
    }
    traffic = {
        name: ((*RUNS, "round", "client", "block"), values)
        for name, values in (("copies_up", result.copies_up), ("copies_down", result.copies_down))
    }
    scalars = {
        name if name not in records else f"scalar/{name}": ((*RUNS, "round"), values)
        for name, values in result.scalars.items()
    }
    matrices = {name: (_axes(values), values) for name, values in result.matrices.items()}
    coordinates: dict[str, Any] = {
        "seed": list(result.seeds),
        "setting": result_table.setting_names(result),
        "round": rounds,
        "eval_round": np.asarray(result.eval_rounds),
        "matrix_round": np.asarray(result.matrix_rounds),
        "client": clients,
        "block": list(result.blocks),
        "train_size": ("client", np.asarray(result.train_sizes)),
        "test_size": ("client", np.asarray(result.test_sizes)),
    }
    if result.client_names:
        coordinates["client_name"] = ("client", list(result.client_names))
    if result.matrices:
        coordinates |= {"receiver": clients, "sender": clients}
    variables = {**traffic, **scalars, **matrices, **records, **scores}
    for name in variables.keys() & coordinates.keys():
        variables[f"record/{name}"] = variables.pop(name)
    for name, values in result.settings.items():
        taken = name in variables or name in coordinates
        coordinates[f"setting/{name}" if taken else name] = ("setting", values)
    return xr.Dataset(variables, coordinates, {"algorithm": result.algorithm})


def _axes(values: np.ndarray) -> tuple[str, ...]:
    """Return a matrix's axes: [S, H, Q, N, N], with groups of layers before the clients."""
    inner = ("receiver", "sender") if values.shape[-2] > 1 else ("any_receiver", "sender")
    middle = tuple(f"group_{k}" if k else "group" for k in range(values.ndim - 5))
    return (*RUNS, "matrix_round", *middle, *inner)


def to_pandas(result: ResultScores) -> "pd.DataFrame":
    """Convert a result; see `Result.to_pandas`."""
    data = to_xarray(result)

    def by(axis: str) -> "pd.DataFrame":
        """Return a row for each entry of the variables along this axis and clients."""
        names = [
            n for n, one in data.data_vars.items() if {*one.dims} - {*RUNS} == {axis, "client"}
        ]
        return data[names].to_dataframe().rename_axis(index={axis: "round"})

    frame = by("round")
    if not result.scores:
        return frame.reset_index()
    scores = by("eval_round")
    frame = frame.join(scores[scores.columns.difference(frame.columns, sort=False)])
    return frame.reset_index()


def to_html(result: ResultScores) -> str:
    """Format the table of a result and its notes for a notebook."""
    if not result.is_scored:
        return f"<p>{html.escape(repr(result))}</p>"
    table = result_table.table(result, PERSONALIZED)
    title = f"{result.algorithm}: {result.num_clients} clients, {result.rounds} rounds"
    first, *notes = (f"<p>{html.escape(line)}</p>" for line in (title, *table.notes))
    return "\n".join([first, table.to_html(), *notes])
