"""Joining of results that differ in their seeds."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from fedjax_pfl.results.result import Result
from fedjax_pfl.results.result_files import BY_RUN
from fedjax_pfl.utils.errors import InputError

EQUAL = ("algorithm", "hyperparameters", "training", "num_clients", "num_parameters", "blocks")
EQUAL += ("client_names", "measures", "item_bytes", "upload_bits", "privacy", "partition_hash")
EQUAL_ARRAYS = ("train_sizes", "test_sizes", "client_ids", "eval_rounds")
EQUAL_ARRAYS += ("block_sizes", "upload_bytes")


def join_seeds(results: Sequence[Result]) -> Result:
    """Join results that differ in their seeds into the result of all seeds.

    Seconds for compiling are added, those of a round averaged over seeds. Matrices are kept of the
    rounds that all have. The end state on the device is left out.

    Args:
      results: at least one, of one algorithm on the same clients and rounds.

    Raises:
      InputError: two of them differ in something else, or have a seed in common.
    """
    kept = [one for one in results[0].matrix_rounds if all(one in r.matrix_rounds for r in results)]
    results = [_with_matrices(result, kept) for result in results]
    first, *others = results
    for other in others:
        _check_joinable(first, other)
    seeds = tuple(seed for result in results for seed in result.seeds)
    if len(set(seeds)) < len(seeds):
        raise InputError(f"Results can't be joined that have seeds in common: {list(seeds)}.")
    groups = {name: [getattr(result, name) for result in results] for name in BY_RUN}
    weights = [len(result.seeds) for result in results]
    paces = [result.seconds_per_round for result in results]
    return replace(
        first,
        seeds=seeds,
        **{
            name: {key: np.concatenate([one[key] for one in parts]) for key in parts[0]}
            for name, parts in groups.items()
        },
        copies_up=np.concatenate([result.copies_up for result in results]),
        copies_down=np.concatenate([result.copies_down for result in results]),
        compile_seconds=sum(result.compile_seconds for result in results),
        seconds_per_round=float(np.average(paces, weights=weights)),
        remarks=tuple(dict.fromkeys(note for result in results for note in result.remarks)),
        final=None,
    )


def _with_matrices(result: Result, rounds: Sequence[int]) -> Result:
    """Return the result with the matrices of these rounds, of those that it has."""
    at = np.isin(result.matrix_rounds, rounds)
    matrices = {name: values[:, :, at] for name, values in result.matrices.items()}
    return replace(result, matrices=matrices, matrix_rounds=result.matrix_rounds[at])


def _check_joinable(first: Result, other: Result) -> None:
    """Raise `InputError` if two results differ in more than their seeds."""
    differ = [name for name in EQUAL if getattr(first, name) != getattr(other, name)]
    differ += [
        name
        for name in EQUAL_ARRAYS
        if not np.array_equal(getattr(first, name), getattr(other, name))
    ]
    differ += [
        name for name in BY_RUN if getattr(first, name).keys() != getattr(other, name).keys()
    ]
    swept = first.settings.keys() == other.settings.keys() and all(
        np.array_equal(values, other.settings[name]) for name, values in first.settings.items()
    )
    differ += [] if swept else ["settings"]
    differ += [] if first.rounds == other.rounds else ["rounds"]
    if differ:
        raise InputError(
            f"Results of {first.algorithm} can't be joined: their {', '.join(differ)} differ."
        )
