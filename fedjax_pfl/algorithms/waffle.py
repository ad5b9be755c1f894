"""WAFFLE: SCAFFOLD weighted by the distance of updates to one client's, Alice (Hao et al. 2021)."""

from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_pfl import mixing, similarity
from fedjax_pfl.algorithm import Algorithm
from fedjax_pfl.clients import Shared
from fedjax_pfl.errors import require
from fedjax_pfl.registry import method
from fedjax_pfl.structs import per_client, shared, static, struct


@struct
class State:
    server: Any = shared()
    control: Any = shared()  # c, like the parameters
    controls: Any = per_client()  # c_i
    previous: Any = per_client()  # raw weights a^(r-1), [N]
    before: Any = per_client()  # a^(r-2), [N]


@method("waffle")
class Waffle(Algorithm):
    """One personalized model, for Alice: all agents send updates, near ones count more (Alg. 1, 2).

    Weights begin spread (the farthest agent always has none) and end on Alice alone; the last three
    raw ones are averaged. The
    paper takes everybody in every round. A round without Alice changes nothing here, and weights
    of clients that are absent or diverged go to the others.

    Attributes:
      alice: permanent id of the client served.
      delta_omega: steepness of Omega = Psi = 1 / (1 + exp(delta_omega (2 r / R - 1))) (eq. 4).
      server_rate: eta_g, not stated in the paper.
      control_update: "rebased" c <- sum abar_i c_i, which recovers local training once all weight
        is Alice's; "literal" c <- c + sum abar_i dc_i (eq. 1), which keeps a constant drift then.
    """

    batch_norm = "shared"
    absent_kept = False  # the weights' history moves for all clients in every round (Alg. 1)

    alice: int = 0
    delta_omega: float = 3.2
    server_rate: float = 1.0
    control_update: Literal["rebased", "literal"] = static("rebased")

    def validate(self):
        require(self.alice >= 0, "alice", self.alice, "a client, counted from 0")
        require(self.server_rate > 0, "server_rate", self.server_rate, "above 0")

    def check(self, federation):
        self.check_whole_models(federation)
        ids = np.asarray(federation.data.ids)
        require(self.alice in ids, "alice", self.alice, f"a client in {ids.min()}..{ids.max()}")

    def init(self, ctx):
        model = ctx.initial_model()
        zero = jax.tree.map(jnp.zeros_like, model["params"])
        even = jnp.full((ctx.num_clients,), 1 / ctx.num_clients, ctx.learning_rate.dtype)
        return State(model, zero, ctx.replicate(zero), even, even)

    def serves(self, ctx):
        return ctx.federation.data.ids == self.alice

    def round(self, ctx, state):
        controls = ctx.cohort.gather(state.controls)

        def correct(gradient, params, shared, client):
            return jax.tree.map(lambda g, ci, c: g - ci + c, gradient, client.operand, shared)

        trained, cohort, loss, gradient = ctx.train(
            Shared(state.server),
            correct=correct,
            shared=state.control,
            operands=controls,
            mean_gradient=True,
        )
        is_alice = cohort.ids == self.alice
        there = jnp.any(is_alice & cohort.mask)
        update = jax.tree.map(lambda y, x: y - x, trained["params"], state.server["params"])
        raw = self._raw_weights(ctx, update, is_alice, cohort.mask)
        raw = cohort.spread(raw, 0)
        weights = cohort.gather(state.before + state.previous + raw) / 3
        weights = mixing.normalize(weights, cohort.mask & there)  # abar
        mean = mixing.weighted_sum(weights, trained, onto=state.server)
        server = jax.tree.map(lambda x, y: x + self.server_rate * (y - x), state.server, mean)
        moved = cohort.mask & there & (ctx.federation.schedule.total_steps(ctx.sizes()) > 0)
        if self.control_update == "rebased":
            held = jax.tree.map(
                lambda new, old: jnp.where(_column(moved, new), new, old), gradient, controls
            )
            control = mixing.weighted_sum(weights, held, onto=state.control)
        else:
            change = jax.tree.map(
                lambda new, old: _column(moved, new) * (new - old), gradient, controls
            )
            total = mixing.weighted_sum(
                weights, change, onto=jax.tree.map(jnp.zeros_like, server["params"])
            )
            control = jax.tree.map(jnp.add, state.control, total)
        kept = State(
            server,
            control,
            cohort.scatter(state.controls, gradient, where=moved),
            previous=jnp.where(there, raw, state.previous),
            before=jnp.where(there, state.previous, state.before),
        )
        clients = {"train_loss": loss, "weight": weights}
        return kept, ctx.record(cohort, up=2, down=2, clients=clients, mixing=weights)

    def _raw_weights(self, ctx, update, is_alice, present):
        """CalcWeights-Omega, eqs. (2)-(4): a [M], normalised."""
        number = ctx.t + 1
        dtype = ctx.learning_rate.dtype
        level = jax.nn.sigmoid(-self.delta_omega * (2 * number.astype(dtype) / ctx.total - 1))
        hers = jax.tree.map(lambda leaf: leaf[jnp.argmax(is_alice)][None], update)
        squares = similarity.squared_norms(jax.tree.map(jnp.subtract, update, hers))
        distance = jnp.sqrt(jnp.where(is_alice, 0, squares))
        others = present & ~is_alice
        farthest = jnp.max(jnp.where(others, distance, 0))
        nearest = jnp.min(jnp.where(others, distance, jnp.inf))
        nearest = jnp.where(jnp.any(others), nearest, 0)
        own = nearest * (1 - _ratio(farthest - nearest, farthest) * (1 - level))  # eq. (2)
        distance = jnp.where(is_alice, own, distance)
        raw = jnp.maximum(level - _ratio(distance - own, farthest - own), 0)  # eq. (3)
        final = 20 * number >= 19 * ctx.total  # r >= 0.95 R
        return mixing.normalize(jnp.where(final, is_alice.astype(dtype), raw), present)

    def models(self, ctx, state, rows):
        return {"personalized": Shared(state.server)}


def _ratio(part, whole):
    """part / whole, 0 where nothing is apart."""
    return jnp.where(whole > 0, part / jnp.where(whole > 0, whole, 1), 0)


def _column(mask, leaf):
    return mask.reshape((-1,) + (1,) * (leaf.ndim - 1))
