"""Natural clients: the values of a column."""

from collections.abc import Mapping

import numpy as np

from fedjax_pfl.data.partitions.dealing import Samples
from fedjax_pfl.data.partitions.rule_registry import DealPlan, register_rule
from fedjax_pfl.utils.errors import InputError, require, require_whole, shown, unknown_name


@register_rule("by_column", natural=True, needs_classes=False)
def by_column(
    samples: Samples,
    num_clients: int | None,
    rng: np.random.Generator,
    *,
    column: str = "",
    min_size: int = 2,
    clients_each: int = 1,
) -> DealPlan:
    """A client for each value of a column: each writer, user or hospital has its own samples.

    Clients are in the order of the values: ascending numbers, or texts in alphabetical order.
    Without `num_clients` all values with enough samples are clients; otherwise that many of them
    are drawn at random. A client's name (`Partition.names`) is its value, with the column's name
    before a number, such as "hospital_3". With several clients of a value, such as a domain, each
    gets an equal random part of its samples, and their names end in -0, -1, ....

    Args:
      column: one of the data set's columns; may be left out if it has only one.
      min_size: fewest samples of a client, including test samples that are held out afterwards;
        values with too few are left out (`options["left_out"]` counts them).
      clients_each: clients of each value.
    """
    column = _chosen(column, samples.columns)
    least = require_whole("min_size", min_size, 1)
    each = require_whole("clients_each", clients_each, 1)
    values, counts = np.unique(samples.columns[column], return_counts=True)
    enough = np.flatnonzero(counts >= least * each)
    rule = "min_size" if each == 1 else "min_size times clients_each"
    what = f"values of column {column!r} have {least * each} {samples.what} or more ({rule})"
    if len(enough) == 0:
        raise InputError(f"No {what}: the largest has {counts.max()}.")
    if num_clients is not None and num_clients > each * len(enough):
        raise InputError(f"num_clients is {num_clients}, but {len(enough)} {what}.")
    allowed = f"a multiple of clients_each, {each}"
    require((num_clients or 0) % each == 0, "num_clients", num_clients, allowed)
    wanted = None if num_clients is None else num_clients // each
    drawn = np.sort(rng.permutation(enough)[:wanted])
    clients = values[drawn]

    def deal(samples: Samples, rng: np.random.Generator):
        order = rng.permutation(len(samples.idx))
        seen = samples.columns[column][order]
        at = np.minimum(np.searchsorted(clients, seen), len(clients) - 1)
        held = clients[at] == seen
        if not held.any():
            raise InputError(
                f"No {samples.what} are of these clients, by column {column!r}: hold out some of "
                "their own with test_split 'pooled' or 'train'."
            )
        own, order = at[held], order[held]
        order = samples.idx[order[np.argsort(own, kind="stable")]]
        ends = np.cumsum(np.bincount(own, minlength=len(clients)))[:-1]
        parts = [np.array_split(one, each) for one in np.split(order, ends)]
        return [[stratum] for one in parts for stratum in one]

    prefix = f"{column}_" if clients.dtype.kind == "i" else ""
    names = tuple(f"{prefix}{value}" for value in clients)
    if each > 1:
        names = tuple(f"{name}-{k}" for name in names for k in range(each))
    left_out = int(len(values) - len(enough))
    return DealPlan(deal, {"column": column, "left_out": left_out}, names=names)


def _chosen(column: str, known: Mapping[str, np.ndarray]) -> str:
    if not known:
        raise InputError(
            "by_column needs a column of the data set, which has none: readers of tables, texts, "
            "Parquet and NPZ files keep those that their option id_columns names."
        )
    if column in known:
        return column
    if not column and len(known) == 1:
        return next(iter(known))
    if not column:
        raise InputError(f"column must be one of {', '.join(sorted(known))}, got {shown(column)}.")
    raise unknown_name("column of the data set:", column, known)
