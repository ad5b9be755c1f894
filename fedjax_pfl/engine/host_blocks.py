"""Models of clients whose state lies on the host, scored and returned block by block."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from fedjax_pfl.engine import host_programs as programs
from fedjax_pfl.engine import host_reads
from fedjax_pfl.engine.host_needs import TracedProgram
from fedjax_pfl.engine.host_store import HostStore
from fedjax_pfl.execution.processes import readable, several
from fedjax_pfl.utils.structs import Broadcast
from fedjax_pfl.utils.typing import Rows


def _blocks(
    program: TracedProgram, store: HostStore, wanted: np.ndarray, splits: tuple
) -> Iterator[tuple]:
    """(the block's clients [k], their rows, the federation with their samples).

    The last block is filled up with copies of its last client.
    """
    width = program.width
    for start in range(0, len(wanted), width):
        at = wanted[np.minimum(np.arange(start, start + width), len(wanted) - 1)]
        clients = np.broadcast_to(at, (program.num_runs, width))
        rows = program.put_rows(store.take(clients))
        if several():
            jax.block_until_ready(rows)
        data = program.put_data(program.data.of(at, splits, width))
        yield at, rows, replace(program.shell, data=data)


def _by_blocks(
    program: TracedProgram,
    fn: Callable,
    states: tuple,
    t: int,
    wanted: Rows,
    splits: tuple,
    **options: Any,
) -> Iterator[Any]:
    """Results of a program for blocks of clients, on the host; one block is ahead."""
    kept, store = states
    address = host_reads.address(store, program.num_runs)
    numbers, ahead = (np.int32(t), np.int32(program.rounds)), None
    for at, rows, federation in _blocks(program, store, np.asarray(wanted, np.int32), splits):
        given = kept, rows, program.runs, address, at, federation, *numbers
        found = fn(*given, layout=program.layout, **options)
        if several():  # what the next block exchanges must not meet what this one does
            jax.block_until_ready(found)
        if ahead is not None:
            yield jax.device_get(ahead)
        ahead = readable(found)
    if ahead is not None:
        yield jax.device_get(ahead)


def scores(
    program: TracedProgram, kept: list, store: HostStore, now: int, blocks: int | None = None
) -> dict[str, np.ndarray]:
    """Scores [R, N] after round `now`; of the first blocks alone, if so many are given."""
    result = {name: nobody.copy() for name, nobody in program.unscored.items()}
    everyone = np.arange(program.federation.num_clients, dtype=np.int32)
    wanted = everyone if program.scored is None else np.asarray(program.scored, np.int32)
    wanted = wanted if blocks is None else wanted[: blocks * program.width]
    if not len(wanted):
        return result
    parts = _by_blocks(
        program,
        programs.scores,
        (kept, store),
        now,
        wanted,
        program.scored_splits,
        extra=program.adapt,
    )
    for number, part in enumerate(parts):
        at = wanted[number * program.width : (number + 1) * program.width]
        for name, value in part.items():
            result[name][:, at] = value[:, : len(at)]
    return result


def models(
    program: TracedProgram, kept: list, store: HostStore, t: Any, rows: np.ndarray
) -> dict[str, Any]:
    """See `Program.models`; on the host."""
    operands = program.block_operands(program.federation)
    splits = program.splits(programs.block_models, operands, layout=program.layout)
    parts = list(_by_blocks(program, programs.block_models, (kept, store), t, rows, splits))

    def one(*models):
        if isinstance(models[0], Broadcast):
            return models[0]
        return jax.tree.map(lambda *leaves: np.concatenate(leaves, axis=1)[:, : len(rows)], *models)

    return {name: one(*(part[name] for part in parts)) for name in parts[0]}
