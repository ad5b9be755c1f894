"""Measurements of a simulation on the host, chunk by chunk."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

from fedjax_pfl.results.means import mean_over_clients
from fedjax_pfl.utils.typing import Tree


def _host(leaf: jax.Array) -> np.ndarray:
    """Copy to the host; half precision becomes float32, as NumPy has no bfloat16."""
    copy = np.array(leaf)
    return copy.astype(np.float32) if copy.dtype.name in ("bfloat16", "float16") else copy


@dataclass(frozen=True)
class MetricsBuffer:
    """Measurements of the past rounds.

    Attributes:
      eval_every, rounds: of the simulation.
      matrix_rounds: rounds, counted from 1, whose matrices are kept; None for all.
      parts: measurements of chunks of rounds, leaves [R, length, ...].
      matrices: of the kept rounds so far.
      paces: seconds of each past round.
    """

    eval_every: int
    rounds: int
    matrix_rounds: Sequence[int] | None
    parts: tuple[Tree, ...] = ()
    matrices: tuple[Tree, ...] = ()
    paces: tuple[float, ...] = ()

    @property
    def done(self) -> int:
        return len(self.paces)

    def keeps(self, after: int) -> list[int]:
        """Return the rounds up to one whose matrices are kept."""
        wanted = range(1, after + 1) if self.matrix_rounds is None else self.matrix_rounds
        return [r for r in wanted if r <= after]

    def add(self, length: int, buffers: Tree, matrices: Tree, seconds: float) -> "MetricsBuffer":
        """Return the measurements with those of a further chunk."""
        # Whole buffers are fetched, as cutting them on the device would compile for each length.
        part = jax.tree.map(lambda leaf: _host(leaf)[:, :length].copy(), buffers)
        kept = self.done + length in self.keeps(self.done + length)
        return replace(
            self,
            parts=(*self.parts, part),
            matrices=(*self.matrices, *[jax.tree.map(_host, matrices)] * kept),
            paces=(*self.paces, *[seconds / length] * length),
        )

    def _joined(self) -> Tree:
        return jax.tree.map(lambda *leaves: np.concatenate(leaves, axis=1), *self.parts)

    def trees(self) -> dict[str, Tree]:
        """Return all measurements as arrays, for a checkpoint."""
        stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *self.matrices or [()])
        return {"records": self._joined(), "matrices": stacked, "paces": np.asarray(self.paces)}

    def following(self, past: "MetricsBuffer") -> "MetricsBuffer":
        """Return this buffer after `past`; scores of rounds that `eval_every` skips become NaN."""
        after = replace(self, matrices=past.matrices, paces=past.paces)
        records, due = past._joined(), after._due()[None, :, None]
        scores = {name: np.where(due, x, np.nan) for name, x in records["scores"].items()}
        return replace(after, parts=(records | {"scores": scores},))

    def restored(
        self, trees: Mapping[str, list[Any]], records: Any, matrices: Any
    ) -> "MetricsBuffer":
        """Return the measurements of `trees`' leaves, given the structures of a chunk's."""
        paces, stacked = trees["paces"][0].tolist(), trees["matrices"]
        kept = [
            jax.tree.unflatten(matrices, [leaf[q] for leaf in stacked])
            for q in range(len(self.keeps(len(paces))))
        ]
        part = jax.tree.unflatten(records, trees["records"])
        return replace(self, parts=(part,), matrices=tuple(kept), paces=tuple(paces))

    def latest(self, name: str) -> float | None:
        """Return the last mean of a score over runs and clients."""
        for part in reversed(self.parts):
            scores = part["scores"].get(name)
            if scores is not None and not np.isnan(scores).all():
                seen = ~np.isnan(scores).all(axis=(0, 2))
                return float(mean_over_clients(scores[:, np.flatnonzero(seen)[-1]].ravel()))
        return None

    def curve(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """Return (scored rounds [E], means over clients [R, E]), NaN without scores."""
        due = self._due()
        if not self.parts:
            return np.zeros(0, int), np.zeros((1, 0))
        values = np.concatenate([part["scores"][name] for part in self.parts], axis=1)[:, due]
        return np.flatnonzero(due) + 1, mean_over_clients(values.astype(np.float64))

    def _due(self) -> np.ndarray:
        """Return which of the past rounds were scored, bool [done]."""
        every = np.arange(1, self.done + 1)
        return (every % self.eval_every == 0) | (every == self.rounds)

    def seconds_per_round(self) -> float:
        # Whole periods of evaluation, so that it is included for all chunk lengths.
        every = min(self.eval_every, self.done)
        complete = self.done // every * every
        return float(np.median(np.reshape(self.paces[:complete], (-1, every)).mean(axis=1)))

    def collect(self, axes: tuple[int, int]) -> dict[str, Any]:
        """Return fields of `Result` for the past rounds: [R, T, ...] becomes [S, H, T, ...]."""

        def split(leaf):
            return leaf.reshape(axes[0], leaf.shape[0] // axes[0], *leaf.shape[1:])

        due = self._due()
        joined = jax.tree.map(split, self._joined())
        stacked = {}
        if self.matrices:
            stack = jax.tree.map(lambda *leaves: np.stack(leaves, axis=1), *self.matrices)
            stacked = jax.tree.map(split, stack)
        return {
            "eval_rounds": np.flatnonzero(due) + 1,
            "scores": {name: value[:, :, due] for name, value in joined["scores"].items()},
            "clients": joined["clients"],
            "scalars": joined["scalars"],
            "copies_up": joined["up"],
            "copies_down": joined["down"],
            "matrices": stacked,
            "matrix_rounds": np.asarray(self.keeps(self.done), int),
        }
