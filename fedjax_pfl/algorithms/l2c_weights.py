"""What L2C's clients learn: their logits of all clients."""

from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from fedjax_pfl.structs import per_client, per_pair, struct
from fedjax_pfl.typing import Stack


@struct
class State:
    models: Stack = per_client()  # w_i
    logits: jax.Array = per_pair()  # a, [receiver, sender]
    active: jax.Array = per_pair()  # bool: whom a client listens to
    steps: jax.Array = per_client()  # int32, of Adam, with its moments
    mean: Any = per_pair()
    square: Any = per_pair()


class Logits:
    """One round in which every member learns its logits themselves.

    Attributes:
      learnt: what members learn, as it was before the round, [M, ...].
      decay: of their weights.
    """

    decay: ClassVar[float] = 0.0

    def __init__(self, ctx, state, trained):
        self.ctx, self.learnt = ctx, ctx.cohort.gather(state.logits)

    @staticmethod
    def begin(ctx, **common) -> State:
        zero = jnp.zeros_like(common["logits"])
        return State(**common, mean=zero, square=zero)

    def logits(self, learnt):
        """Of all clients, [M, N]."""
        return learnt

    def gradient(self, learnt, slopes):
        """Like `learnt`, from the slopes [M, M] of the members' logits."""
        return jnp.zeros_like(learnt).at[:, self.ctx.cohort.rows].set(slopes)

    def kept(self, cohort, state, learnt, logits):
        """The fields of the state that hold what was learnt."""
        return {"logits": cohort.scatter(state.logits, learnt)}
