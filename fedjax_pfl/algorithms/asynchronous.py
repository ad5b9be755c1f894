"""Personalized Heterogeneous FL with Gradient Similarity: FedAvg(Sync) and FedAvg(Async).

Anonymous authors, submitted to ICLR 2022. https://openreview.net/forum?id=c4iTLTkpY5

Asynchronous Federated Optimization: FedAsync.

Cong Xie, Oluwasanmi Koyejo, Indranil Gupta. OPT 2020.
https://arxiv.org/abs/1903.03934

The federation decides which clients are late (`stragglers`), and the algorithm decides what the
server does with their uploads. The personalized model is usually the one that the client trained
last; the global model is the server's. They correspond to the columns "client" and (pooled over all
test samples) "server" in Table 2 of the first paper, which proposes PLGA.
"""

from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_pfl import core, mixing, training, trees


class Turn(NamedTuple):
    """The result of one round of local training whose uploads may be late.

    The masks [M] exclude clients that diverged.

    Attributes:
      cohort: members that train or whose upload arrives.
      starts: which members trained, from the server's present model.
      arrives: which uploads arrive; they are `cohort.staleness` rounds old.
      trained: models [M, ...] of the members that trained.
      loss: [M].
    """

    cohort: core.Cohort
    starts: core.Mask
    arrives: core.Mask
    trained: core.Stack
    loss: core.PerMember

    @property
    def late(self) -> core.Mask:
        """Which uploads began in an earlier round, bool [M]."""
        return self.arrives & (self.cohort.staleness > 0)

    def sound(self, earlier: core.PerClient) -> tuple["Turn", core.PerClient]:
        """Return (the turn without late uploads that diverged, `finite` of the next round).

        Args:
          earlier: bool [N], clients whose last training stayed finite.
        """
        went_well = self.cohort.gather(earlier)
        turn = self._replace(arrives=self.arrives & (went_well | ~self.late))
        began = self.starts | self.cohort.diverged
        turn = turn._replace(cohort=self.cohort.masked(turn.starts | turn.arrives))
        return turn, self.cohort.scatter(earlier, self.starts, where=began)

    def record(self, ctx: core.Context, weights: core.PerMember) -> core.Record:
        """Record one download per client that begins and one upload per arrival."""
        clients = {
            "train_loss": jnp.where(self.starts, self.loss, jnp.nan),
            "staleness": jnp.where(self.arrives, self.cohort.staleness, jnp.nan),
        }
        up, down = self.arrives, self.starts
        return ctx.record(self.cohort, up=up, down=down, clients=clients, mixing=weights)


def take_turn(
    ctx: core.Context,
    state,
    cohort: core.Cohort | None = None,
    begin: core.Stack | core.Broadcast | None = None,
    **options,
) -> Turn:
    """Train the members that begin in this round.

    Args:
      ctx, state: of the round.
      cohort: who begins and whose uploads arrive; the round's cohort by default.
      begin: the models that they train from; the server's by default.
      **options: `extra_loss`, `broadcast` and `updates_per_batch` of `ctx.train`.
    """
    cohort = ctx.cohort if cohort is None else cohort
    starts, arrives = cohort.starts, cohort.arrives
    begin = core.Broadcast(state.server) if begin is None else begin
    # private leaves are those of the client's own model
    if isinstance(begin, core.Broadcast) and not ctx.plan.all_shared:
        one, own = trees.replicate(state.server, 1), cohort.gather(state.trained)
        begin = ctx.average(jnp.ones((1,)), one, onto=own)
    active = None if cohort.complete else starts
    sent = ctx.train(begin, cohort, active=active, **options)
    cohort = sent.cohort.masked(starts | arrives)
    return Turn(cohort, starts & cohort.mask, arrives & cohort.mask, sent.models, sent.loss)


@core.struct
class State:
    server: core.Model = core.per_server()
    trained: core.Stack = core.per_client()  # each client's own: as last trained, or as sent late
    finite: core.PerClient = core.per_client()  # whether that training stayed finite, bool [N]


@core.algorithm("fedavg_async")
class FedAvgAsync(core.Algorithm):
    """FedAvg of all uploads that arrive, late ones unchanged ("FedAvg (Async)")."""

    batch_norm = "shared"
    server_needs = "sums"

    def check(self, federation):
        core.require_whole_models(self, federation)

    def init(self, ctx):
        model = ctx.initial_model()
        return State(model, ctx.replicate(model), jnp.ones((ctx.num_clients,), bool))

    def turn(self, ctx, state):
        return take_turn(ctx, state)

    def round(self, ctx, state):
        turn, finite = self.turn(ctx, state).sound(state.finite)
        cohort = turn.cohort
        own = cohort.scatter(state.trained, turn.trained, where=turn.starts)
        uploads = self.uploads(ctx, turn, cohort.gather(own), state.server)
        arriving = cohort.masked(turn.arrives)
        sent = ctx.upload(uploads, core.Broadcast(state.server), cohort=arriving)
        server, weights = self.aggregate(ctx, turn, sent, state.server)
        own = cohort.scatter(own, uploads, where=turn.late)
        return State(server, own, finite), turn.record(ctx, weights)

    def uploads(self, ctx, turn, models, server):
        """Return the uploads [M, ...] made from the clients' own models [M, ...]."""
        return models

    def weigh(self, ctx, turn):
        """Return the weights [M] of the uploads that arrive."""
        return mixing.by_size(ctx.sizes(), turn.arrives)

    def aggregate(self, ctx, turn, uploads, server):
        """Return (the server's new model, weights [M] of the uploads)."""
        weights = self.weigh(ctx, turn)
        return self.moved(ctx, server, mixing.weighted_sum(weights, uploads, onto=server)), weights

    @staticmethod
    def moved(ctx, server, mean):
        """Return `server` (one model or a stack) with the shared leaves of `mean`."""
        split = ctx.plan.split
        return trees.join(split(mean)[0], split(server)[1])

    def models(self, ctx, state, rows):
        named = {"personalized": trees.take(state.trained, rows)}
        if ctx.plan.all_shared:
            named["global"] = core.Broadcast(state.server)
        return named


@core.algorithm("fedavg_sync")
class FedAvgSync(FedAvgAsync):
    """FedAvg over clients that begin and arrive in the same round ("FedAvg (Sync)").

    A straggler trains in the round in which its late upload would have come, and sends nothing.
    This changes only its own model. Under the schedule "code" it takes part in the next round;
    under "paper" it never does.
    """

    def turn(self, ctx, state):
        return take_turn(ctx, state, ctx.cohort.dropping_late())


@core.algorithm("fedasync")
class FedAsync(FedAvgAsync):
    """FedAsync: w <- (1 - a) w + a w_i, where a falls with staleness (Xie et al. 2019).

    Attributes:
      mode: "plga", as in PLGA's published code: a late client mixes its model with the server's,
        v <- a v + (1 - a) w with a = alpha (staleness + 1)^-1/2, then keeps and sends it. Uploads
        are averaged by sample counts; punctual ones are unchanged. "original": the uploads of a
        round are applied one after the other, in the order of permanent ids, with
        a = alpha s(staleness).
      alpha: 0.8 in PLGA's published code, 0.6 or 0.9 in Xie et al.
      decay: s of the original mode: "constant" 1, "poly" (x + 1)^-decay_rate, "hinge" 1 up to
        x = decay_start and 1 / (decay_rate (x - decay_start) + 1) from there.
      decay_rate: of s; 0.5 for poly and 10 for hinge in Xie et al., who call it a.
      decay_start: of s; 4 in Xie et al., who call it b.
      proximal_weight: rho of the local loss's rho/2 |w - w_start|^2.
    """

    row_stochastic = False  # the rest of a row is the weight of the server's own model

    mode: Literal["plga", "original"] = core.static(default="plga")
    alpha: float = core.number(default=0.8, allowed="in [0, 1]")
    decay: Literal["poly", "hinge", "constant"] = core.static(
        default="poly", needs="mode='original'"
    )
    decay_rate: float = core.number(
        default=0.5,
        allowed="at least 0",
        needs=("mode='original'", "decay='poly' or decay='hinge'"),
    )
    decay_start: float = core.number(default=4.0, allowed="at least 0", needs="decay='hinge'")
    proximal_weight: float = core.number(default=0.0, allowed="at least 0")

    def turn(self, ctx, state):
        pull = training.proximal(self.proximal_weight)
        return take_turn(ctx, state, extra_loss=pull, broadcast=state.server["params"])

    def uploads(self, ctx, turn, models, server):
        if self.mode == "original":
            return models
        rate = self._rate(ctx, turn)

        def draw(v, w):
            if not jnp.issubdtype(w.dtype, jnp.inexact):
                return v
            a = trees.expand_to(v, rate).astype(v.dtype)
            return a * v + (1 - a) * w

        drawn = self.moved(ctx, models, jax.tree.map(draw, models, server))
        return trees.where(turn.late, drawn, models)

    def aggregate(self, ctx, turn, uploads, server):
        rate = self._rate(ctx, turn)
        if self.mode == "plga":
            server, weights = super().aggregate(ctx, turn, uploads, server)
            return server, weights * jnp.where(turn.late, rate, 1)
        rate = jnp.where(turn.arrives, rate, 0)
        later = turn.cohort.ids[None, :] > turn.cohort.ids[:, None]
        parts = rate * jnp.prod(jnp.where(later, 1 - rate[None, :], 1), axis=1)
        # w + sum_i part_i (w_i - w), whatever the parts sum to.
        weights, total = mixing.normalize(parts), jnp.sum(parts)
        mean = mixing.weighted_sum(weights, uploads, onto=server)
        mean = jax.tree.map(lambda w, m: w + (total * (m - w)).astype(w.dtype), server, mean)
        return self.moved(ctx, server, mean), parts

    def _rate(self, ctx, turn):
        """Return the mixing rate a of each upload, [M]."""
        return self.alpha * self._decayed(turn.cohort.staleness.astype(ctx.dtype))

    def _decayed(self, staleness):
        if self.decay == "constant":
            return jnp.ones_like(staleness)
        if self.decay == "poly":
            return (staleness + 1) ** -self.decay_rate
        over = jnp.maximum(staleness - self.decay_start, 0)
        return 1 / (self.decay_rate * over + 1)
