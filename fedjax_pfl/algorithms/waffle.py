"""WAFFLE: Weighted Averaging for Personalized Federated Learning.

Martin Beaussart, Felix Grimberg, Mary-Anne Hartley, Martin Jaggi. 2021.
https://arxiv.org/abs/2110.06978
"""

from dataclasses import replace
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_pfl import core, mixing, training, trees
from fedjax_pfl.algorithms import scaffold
from fedjax_pfl.algorithms.common.alice import (
    ForAlice,
    squared_distances_to_alice,
    summed_gradients,
)


@core.struct
class States:
    """The states of all runs: the fields of WAFFLE's `State` with a leading axis of Alices."""

    server: Any = core.per_client()
    private: Any = core.per_pair()
    optimizer: Any = core.per_client()
    control: Any = core.per_client()
    controls: Any = core.per_pair()
    previous: Any = core.per_pair()
    before: Any = core.per_pair()


@core.struct
class State(scaffold.State):
    """The state of one Alice's run."""

    previous: Any = core.per_client()  # raw weights a^(r-1), [N]
    before: Any = core.per_client()  # a^(r-2), [N]


@core.algorithm("waffle")
class Waffle(ForAlice, scaffold.Scaffold):
    """WAFFLE: one personalized model for Alice, by updates weighted by their distance (Alg. 1, 2).

    SCAFFOLD with unequal weights. At first they cover all agents except the farthest; in the end
    Alice has all weight. The raw weights of the last three rounds are averaged. In the
    paper all agents take part in every round. Weights of clients that are absent or diverged go to
    the others.

    Attributes:
      alice: permanent id of the client served.
      everyone: one independent run for each client as Alice (footnote 1): N times the training and
        traffic of one run, and N^2 control variates. The runs are sequential, so that at most N
        models train at once.
      delta_omega: steepness of Omega = Psi = 1 / (1 + exp(delta_omega (2 r / R - 1))) (eq. 4).
      shift: rounds that are added to r in eq. (4); local training begins so much earlier, or later
        if it is negative (Section 2.2).
      server_rate: eta_g, not stated in the paper.
      control_update: "rebased" c <- sum abar_i c_i, which becomes local training once Alice has all
        weight; "literal" c <- c + sum abar_i dc_i (eq. 1), which then keeps a constant drift;
        where only the agents S take part, its sum is multiplied by |S|/N.
      distance: the quantity that d_i compares with Alice's: the "update" dy_i, with the corrections
        by controls (Alg. 1), or the "gradient", the sum of the raw minibatch gradients, without
        them (the paper's text; Weight Erosion).
    """

    server_needs = "models"
    aggregator_replaces = "nothing"
    absent_kept = False  # the weights' history moves for all clients in every round (Alg. 1)

    alice: int = core.number(default=0, allowed="at least 0", needs="everyone=False")
    everyone: bool = core.static(default=False)
    delta_omega: float = core.number(default=3.2, allowed="at least 0")
    shift: float = core.number(default=0.0)
    control_update: Literal["rebased", "literal"] = core.static(default="rebased")
    distance: Literal["update", "gradient"] = core.static(default="update")

    def check(self, federation):
        if self.everyone:
            core.require_whole_models(self, federation)
            if federation.privacy is not None:
                raise core.InputError(
                    "waffle with everyone=true draws the same noise for each Alice: leave it out "
                    "with dp."
                )
            capacity, count = federation.data.train.capacity, federation.num_clients
            steps = count * federation.schedule.total_steps(capacity)
            if steps >= training.COUNT_LIMIT:
                raise core.InputError(
                    f"everyone would take {steps:,} local steps of a client in a round, one run "
                    f"for each Alice, and they can be counted below {training.COUNT_LIMIT:,}."
                )
        else:
            super().check(federation)

    def init(self, ctx):
        start = super().init(ctx)
        # The paper does not state the weights before the first round.
        history = jnp.full((ctx.num_clients,), 1 / ctx.num_clients, ctx.dtype)
        state = State(**vars(start), previous=history, before=history)
        return States(**vars(ctx.replicate(state))) if self.everyone else state

    def served_clients(self, ctx):
        return jnp.ones((ctx.num_clients,), bool) if self.everyone else super().served_clients(ctx)

    def round(self, ctx, state):
        if not self.everyone:
            return super().round(ctx, state)

        def one(operand):
            alice, fields = operand
            return replace(self, alice=alice, everyone=False).round(ctx, State(**fields))

        states, records = lax.map(one, (ctx.ids, vars(state)))
        return States(**vars(states)), joint_record(records)

    def weigh(self, ctx, state, sent):
        """Return abar, the mean of the last three raw weights."""
        cohort, is_alice = sent.cohort, sent.cohort.ids == self.alice
        if self.distance == "update":
            moved = jax.tree.map(jnp.subtract, sent.models["params"], state.server["params"])
        else:
            moved = summed_gradients(ctx, sent.controls)  # c_i^+ is their mean
        raw = cohort.spread(self.raw_weights(ctx, moved, is_alice, cohort.mask), 0)
        weights = cohort.gather(state.before + state.previous + raw)
        there = jnp.any(cohort.mask)
        previous = jnp.where(there, raw.astype(state.previous.dtype), state.previous)
        before = jnp.where(there, state.previous, state.before)
        weights = mixing.normalize(weights, cohort.mask)
        return weights, replace(state, previous=previous, before=before)

    def server_control(self, ctx, state, weights, sent):
        if self.control_update == "rebased":
            return mixing.weighted_sum(weights, sent.controls, onto=state.control)
        cohort = sent.cohort
        change = jax.tree.map(jnp.subtract, sent.controls, cohort.gather(state.controls))
        none = jax.tree.map(jnp.zeros_like, state.control)
        total = mixing.weighted_sum(weights, change, onto=none)
        part = jnp.sum(cohort.mask) / cohort.num_clients  # |S| / N
        return jax.tree.map(lambda c, dc: c + (part * dc).astype(c.dtype), state.control, total)

    def raw_weights(self, ctx, update, is_alice, present):
        """Return a [M], normalized (CalcWeights-Omega, eqs. 2-4).

        Args:
          update: the quantity of the distances, like the parameters, [M, ...].
          is_alice, present: bool [M].
        """
        number, total = (ctx.t + 1).astype(ctx.dtype), ctx.num_rounds.astype(ctx.dtype)
        # Omega(r) = Psi(r), eq. (4)
        omega = jax.nn.sigmoid(-self.delta_omega * (2 * (number + self.shift) / total - 1))
        distance = jnp.sqrt(squared_distances_to_alice(update, is_alice)[0])
        others = present & ~is_alice
        farthest = jnp.max(jnp.where(others, distance, 0))
        nearest = jnp.min(jnp.where(others, distance, jnp.inf))
        nearest = jnp.where(jnp.any(others), nearest, 0)
        own = nearest * (1 - mixing.ratio(farthest - nearest, farthest) * (1 - omega))  # eq. (2)
        distance = jnp.where(is_alice, own, distance)
        raw = jnp.maximum(omega - mixing.ratio(distance - own, farthest - own), 0)  # eq. (3)
        only_alice = ctx.num_rounds - (ctx.t + 1) <= ctx.num_rounds // 20  # r >= 0.95 R
        only_alice |= ~jnp.any((raw > 0) & present)  # the limit of small Omega
        return mixing.normalize(jnp.where(only_alice, is_alice.astype(raw.dtype), raw), present)

    def models(self, ctx, state, rows):
        if not self.everyone:
            return super().models(ctx, state, rows)
        private = jax.tree.map(lambda leaf: leaf[rows, rows], state.private)
        return {"personalized": trees.join(trees.take(state.server, rows), private)}


def joint_record(records: core.Record) -> core.Record:
    """Merge the runs' records of a round, whose leaves lead with the Alices.

    Copies and steps are summed. A client counts as diverged where it diverged in any run. Its loss
    and weight are those of its own run as Alice. The mixing matrix is [Alices, agents]; a run
    without a step has a row of the identity.
    """

    def of_client(values):
        if values.dtype == bool:
            return jnp.any(values, axis=0)
        if jnp.issubdtype(values.dtype, jnp.integer):
            return jnp.sum(values, axis=0, dtype=values.dtype)
        return jnp.diagonal(values)

    weights = records.matrices["mixing"][:, 0]
    still = ~jnp.any(weights != 0, axis=1)
    matrix = jnp.where(still[:, None], jnp.eye(len(weights), dtype=weights.dtype), weights)
    clients = {name: of_client(values) for name, values in records.clients.items()}
    member = clients["participated"] & ~clients["diverged"]
    return core.Record(
        clients=clients | {"self_weight": jnp.where(member, jnp.diagonal(matrix), jnp.nan)},
        scalars={},
        up=jnp.sum(records.up, axis=0, dtype=jnp.int32),
        down=jnp.sum(records.down, axis=0, dtype=jnp.int32),
        matrices={"mixing": matrix},
    )
