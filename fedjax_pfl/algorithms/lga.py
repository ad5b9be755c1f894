"""Personalized Heterogeneous FL with Gradient Similarity: LGA and PLGA.

Anonymous authors, submitted to ICLR 2022. https://openreview.net/forum?id=c4iTLTkpY5
"""

from typing import ClassVar, Literal

import jax
import jax.numpy as jnp

from fedjax_pfl import core, mixing, similarity, trees
from fedjax_pfl.algorithms.asynchronous import FedAvgAsync, take_turn


@core.struct
class State:
    server: core.Model = core.per_server()
    # v: each client's last trained model; once sent late, v'
    trained: core.Stack = core.per_client()
    begun: core.Stack = core.per_client()  # w0: the model it trained from
    # w1: the server's model one round later; for stragglers only
    second: core.Stack = core.per_client()
    finite: core.PerClient = core.per_client()  # whether the last training stayed finite, bool [N]
    personal: core.Stack | None = core.per_client()  # only PLGA's


@core.algorithm("lga")
class Lga(FedAvgAsync):
    """LGA (leap gradient approximation): predict a late model for the round of its arrival.

    D = v - w0 is the straggler's own update, w the server's model and w1 the one after w0. Then
    v' = w + S~ D D (w - w1) + D element by element (eq. 11), with S~ = e^S / (e + e^S) (eq. 9) and
    S = cos(w1 - w0, D) (eq. 8). Uploads, fresh and predicted, are averaged. As in the published
    code, the prediction replaces the client's own model until it trains again. The server computes
    it, so nothing more is sent.

    Attributes:
      stage: the leaves that share one S: each "tensor" (the published code), the "blocks", the two
        "stages" body and head, or the "model".
      base: where the prediction starts: "current" w (eq. 11, better in the paper) or "begun" w0
        (eq. 10).
      weighting: of uploads by "size", or "uniform" 1 / N' (Alg. 2).
      raw_cosine: S in place of S~ in the prediction, as in the published code.
    """

    server_needs = "models"

    stage: Literal["tensor", "blocks", "stages", "model"] = core.static(default="tensor")
    base: Literal["current", "begun"] = core.static(default="current")
    raw_cosine: bool = core.static(default=False)
    weighting: Literal["size", "uniform"] = core.static(default="size")

    keeps_personal: ClassVar[bool] = False

    def init(self, ctx):
        model = ctx.initial_model()
        stack = ctx.replicate(model)
        finite = jnp.ones((ctx.num_clients,), bool)
        return State(model, stack, stack, stack, finite, stack if self.keeps_personal else None)

    def round(self, ctx, state):
        now = trees.replicate(state.server, ctx.cohort.size)
        received = self.received(ctx, state)
        turn, finite = self.turn(ctx, state).sound(state.finite)
        cohort, late = turn.cohort, turn.late
        trained = cohort.scatter(state.trained, turn.trained, where=turn.starts)
        begin = now if isinstance(received, core.Broadcast) else received
        begun = cohort.scatter(state.begun, begin, where=turn.starts)
        second = cohort.scatter(state.second, now, where=(cohort.delay > 0) & (cohort.phase == 1))
        own, w0, w1 = cohort.gather((trained, begun, second))
        arriving = cohort.masked(turn.arrives)
        v = ctx.upload(own, received, cohort=arriving)
        cosine = self._cosine(ctx, w1, w0, v)
        predicted = self._predict(cosine, v, w0, w1, now)
        good = ~late | trees.rows_finite(predicted, cohort.size)  # D D overflows before D does
        turn = turn._replace(arrives=turn.arrives & good)
        late &= good
        server, weights = self.aggregate(ctx, turn, trees.where(late, predicted, v), state.server)
        personal = state.personal
        if self.keeps_personal:
            new = trees.replicate(server, cohort.size)
            punctual = _between(self._cosine(ctx, new, w0, v), w0, v, new)
            stragglers = _between(cosine, w0, predicted, now)
            mine = trees.where(late, stragglers, punctual)
            personal = cohort.scatter(personal, mine, where=turn.arrives)
        trained = cohort.scatter(trained, predicted, where=late)
        state = State(server, trained, begun, second, finite, personal)
        return state, turn.record(ctx, weights)

    def received(self, ctx, state):
        """Return the models that clients train from and uploads are compared with."""
        return core.Broadcast(state.server)

    def weigh(self, ctx, turn):
        if self.weighting == "size":
            return super().weigh(ctx, turn)
        there = turn.arrives & (ctx.sizes() > 0)
        return mixing.normalize(there.astype(ctx.dtype))

    def _cosine(self, ctx, moved, w0, v):
        """Return S = cos(moved - w0, v - w0) of each leaf's stage (eq. 8), a tree of [M]."""
        plan = ctx.plan
        server, own = (jax.tree.map(jnp.subtract, side, w0) for side in (moved, v))
        parts = plan.compared_parts(self.stage, server, own)
        scores = {group: similarity.row_cosines(*pair) for group, pair in parts.items()}
        nothing = jnp.zeros(ctx.cohort.rows.shape, ctx.dtype)
        treedef = jax.tree.structure(v)
        groups = plan.leaf_groups(self.stage)
        return treedef.unflatten([scores.get(group, nothing) for group in groups])

    def _predict(self, cosine, v, w0, w1, now):
        """Return eq. (11) or (10); running statistics are the client's own."""

        def leap(s, v, w0, w1, w):
            s = _column(s if self.raw_cosine else _softened(s), v)
            way = v - w0
            return (w if self.base == "current" else w0) + s * way * way * (w - w1) + way

        params = jax.tree.map(leap, *(x["params"] for x in (cosine, v, w0, w1, now)))
        return {**v, "params": params}


@core.algorithm("plga")
class Plga(Lga):
    """PLGA: LGA with personalized models between a client's and the server's (eqs. 12, 14).

    w0 + (1 - S~) (v' - w0) + S~ (w - w0). For a late client v' is the prediction. For a punctual
    client v' is its trained model and w the server's model after the round, as in the published
    code.

    Attributes:
      start: what clients train from: the "server" model (Alg. 2 and the published code, where the
        personalized model is only scored), or the client's "personal" one, as section 1 has it
        dispatched. w0 is then the model received.
      flush: in the last round, predict and send the uploads that have not arrived, as in the
        published code. The last models of waiting clients are then scored too.
    """

    start: Literal["server", "personal"] = core.static(default="server")
    flush: bool = core.static(default=True)

    keeps_personal = True

    def turn(self, ctx, state):
        last = (ctx.t + 1 == ctx.num_rounds) & self.flush
        return take_turn(ctx, state, ctx.cohort.flushed(last), self.received(ctx, state))

    def received(self, ctx, state):
        if self.start == "server":
            return super().received(ctx, state)
        # It stays the same while an upload is on its way.
        return ctx.cohort.gather(state.personal)

    def models(self, ctx, state, rows):
        named = super().models(ctx, state, rows)
        named["last_trained"] = named["personalized"]
        return named | {"personalized": trees.take(state.personal, rows)}


def _between(cosine, w0, own, server):
    """Return eq. (14); running statistics are the client's own."""

    def blend(s, w0, own, w):
        s = _column(_softened(s), own)
        return w0 + (1 - s) * (own - w0) + s * (w - w0)

    params = jax.tree.map(blend, *(x["params"] for x in (cosine, w0, own, server)))
    return {**own, "params": params}


def _softened(cosine):
    """Return S~ = e^S / (e + e^S), eq. (9)."""
    return jax.nn.sigmoid(cosine - 1)


def _column(values, leaf):
    return trees.expand_to(leaf, values).astype(leaf.dtype)
