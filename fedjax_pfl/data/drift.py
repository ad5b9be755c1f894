"""Concept drift: clients whose labels or images change from a round on.

A concept is a number: 0 for the data as they are, k for the k-th change of them. Each client has a
list of phases, each with its first round and its concept, and all phases' tables are arguments of
the program, which looks up the round's. So a change compiles nothing.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_pfl.utils.errors import InputError, require
from fedjax_pfl.utils.structs import struct

SWAP, ROTATE = "swap", "rotate"


@struct
class Drift:
    """The phases of all clients, P for each.

    Attributes:
      starts: int32 [N, P], first round of each phase, from 0; the first phase begins in round 0.
      concepts: int32 [N, P], number of each phase's concept.
      labels: int32 [N, P, C], the label of each class, or None.
      turns: int32 [N, P], quarter turns of images, or None.
      counts: int32 [N, P, C], training samples of each label.
    """

    starts: jax.Array
    concepts: jax.Array
    labels: jax.Array | None
    turns: jax.Array | None
    counts: jax.Array

    def phase(self, t: jax.Array | int) -> jax.Array:
        """Return the phase of each client in round `t`, int32 [N]."""
        return jnp.sum(t >= self.starts, axis=1, dtype=jnp.int32) - 1

    def fields(self, phase: jax.Array) -> dict[str, jax.Array | None]:
        """Return the fields of the clients' data in the phases [N]."""
        tables = {"label_map": self.labels, "turns": self.turns, "class_counts": self.counts}
        return jax.tree.map(lambda table: table[jnp.arange(len(phase)), phase], tables)


def schedule(
    num_clients: int, rounds: Sequence[int], concepts: int, share: float, stagger: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return (first rounds from 0, concepts), int32 [N, P] each, of clients that change in turn.

    Args:
      num_clients: N.
      rounds: rounds, counted from 1, that are the first of another concept.
      concepts: number of concepts; the one after the last is the first again.
      share: part of the clients that change, the first ones.
      stagger: rounds between the changes of one client and the next.

    Raises:
      InputError: rounds that do not ascend, or concepts that never come.
    """
    begin = np.asarray(rounds, np.int64) - 1
    ascending = len(begin) and begin[0] > 0 and (np.diff(begin) > 0).all()
    require(bool(ascending), "drift_rounds", list(rounds), "ascending rounds from 2 on")
    allowed = f"at most {len(begin) + 1}, one more than drift_rounds"
    require(concepts <= len(begin) + 1, "drift_concepts", concepts, allowed)
    count = max(1, int(np.floor(share * num_clients + 0.5)))
    later = stagger * np.arange(num_clients)[:, None]
    last = int(begin[-1]) + stagger * max(count - 1, 0)
    require(last < 2**31 - 1, "last round of drift", last, "below 2^31 - 1")
    changes = np.where(np.arange(num_clients)[:, None] < count, begin + later, 2**31 - 1)
    starts = np.concatenate([np.zeros((num_clients, 1), np.int64), changes], axis=1)
    numbers = np.arange(len(begin) + 1) % concepts
    return starts.astype(np.int32), np.tile(numbers.astype(np.int32), (num_clients, 1))


def make_drift(
    kind: str,
    starts: np.ndarray,
    concepts: np.ndarray,
    counts: np.ndarray,
    label_map: np.ndarray | None,
    turns: np.ndarray | None,
) -> Drift:
    """Return the drift of clients.

    Concept k > 0 of "swap" exchanges the labels 2k - 2 and 2k - 1, as the concepts of FedDrift's
    (Jothimurugesan et al., AISTATS 2023) experiments on digits exchange pairs of labels. That of
    "rotate" turns images by k quarter turns.

    Args:
      kind: "swap" or "rotate".
      starts, concepts: int [N, P], see `schedule`.
      counts: int [N, C], training samples of each label without drift.
      label_map, turns: the partition's own, applied before those of the drift; or None.

    Raises:
      InputError: more concepts than there are pairs of labels or turns.
    """
    num_clients, num_classes = counts.shape
    most = int(concepts.max()) + 1
    if kind == ROTATE:
        require(most <= 4, "drift_concepts", most, "at most 4 by quarter turns")
        first = np.zeros(num_clients, int) if turns is None else np.asarray(turns)
        turned = (first[:, None] + concepts) % 4
        labels = None
        if label_map is not None:
            labels = np.broadcast_to(label_map[:, None], (*concepts.shape, num_classes))
        table = np.broadcast_to(counts[:, None], (*concepts.shape, num_classes))
    else:
        limit = num_classes // 2 + 1
        if most > limit:
            raise InputError(
                f"drift_concepts must be at most {limit} with {num_classes} classes, whose labels "
                f"are swapped in pairs, got {most}."
            )
        changed = np.tile(np.arange(num_classes), (most, 1))
        for k in range(1, most):
            changed[k, [2 * k - 2, 2 * k - 1]] = 2 * k - 1, 2 * k - 2
        each = changed[concepts]  # [N, P, C]
        before = np.arange(num_classes)[None] if label_map is None else np.asarray(label_map)
        before = np.broadcast_to(before, (num_clients, num_classes))
        labels = np.take_along_axis(each, before[:, None, :].repeat(each.shape[1], 1), axis=2)
        # A swap is its own inverse: label c counts what was seen as its partner.
        table = np.take_along_axis(counts[:, None].repeat(each.shape[1], 1), each, axis=2)
        turned = None
        if turns is not None:
            turned = np.broadcast_to(np.asarray(turns)[:, None], concepts.shape)

    tables = (starts, concepts, labels, turned, table)
    return Drift(*jax.tree.map(lambda array: jnp.asarray(array, np.int32), tables))
