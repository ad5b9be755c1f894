"""Personalized Heterogeneous FL with Gradient Similarity: SPFL and SPFL-w.

Anonymous authors, submitted to ICLR 2022. https://openreview.net/forum?id=c4iTLTkpY5
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar, Literal

import jax
import jax.numpy as jnp
import optax

from fedjax_pfl import core, mixing, similarity, trees
from fedjax_pfl.utils.errors import shown


@core.struct
class State:
    models: core.Stack = core.per_client()
    # models before the server's step of the client's last round
    trained: core.Stack = core.per_client()
    cosines: jax.Array = core.per_pair()  # S, [N, N, stages]


@core.algorithm("spfl")
class Spfl(core.Algorithm):
    """SPFL: each client adds all clients' updates, weighted by their similarity (Alg. 1).

    Before the first round and after every `gamma`-th, all N clients are set to their uniform mean
    and train from it as in a round (the routine). This serves only to measure the similarity S; the
    trained models are discarded. In every round w_i <- w_i + sum_j softmax_j(S_ij) delta_j, where
    delta_j is the update of client j's local training. Under sampling all clients still take part
    in the routine; only the cohort is mixed.

    Equation (7) has another factor, alpha |D_j| / |D| = 0.001, with which models cannot train. The
    published code omits it, and so do the defaults.

    The models scored are w_i after the server's step ("personalized") and the client's trained
    model before it ("last_trained"). The published code prints both.

    Attributes:
      gamma: rounds between two measurements of S.
      local_updates: steps on each minibatch; 1 is "SPFL (1-step)".
      weighting: "published", as in the authors' code: one S for the whole body; heads
        stay local (W = I) until the next measurement. "paper": eqs. (6), (7), with two stages, body
        and head, each mixed by its own S.
      stage: of weighting "paper": "stages", body and head; each of the "blocks"; the "model".
      raw_cosines: of weighting "paper": S in place of its softmax, eq. (4).
      data_shares: of weighting "paper": the factor |D_j| / |D| of eqs. (4), (7). Rows of (7) then
        sum to about 1 / N, which a `server_rate` of N makes up for.
      server_rate: alpha of eqs. (4), (7), a factor on the sum of updates.
      layer_weights: weights of the layers' cosines in S; only kernels are compared. "auto" is the
        published 0.5, 0.3, 0.2 for a body of three layers and equal weights for any other. Numbers
        such as "0.6,0.4" give one for each layer of the body.
    """

    revision = 2
    aggregator_replaces = "matrix"
    absent_kept = False  # the routine sets all clients to their mean (Alg. 1)
    absent_idle = False  # all clients train in the routine
    published: ClassVar[tuple[float, ...]] = (0.5, 0.3, 0.2)
    compares_heads: ClassVar[bool] = False

    gamma: int = core.static(default=10, allowed="at least 1")
    local_updates: int = core.static(default=2, allowed="in [1, 10]")
    weighting: Literal["published", "paper"] = core.static(default="published")
    stage: Literal["stages", "blocks", "model"] = core.static(
        default="stages", needs="weighting='paper'"
    )
    raw_cosines: bool = core.static(default=False, needs="weighting='paper'")
    data_shares: bool = core.static(default=False, needs="weighting='paper'")
    server_rate: float = core.number(default=1.0, allowed="at least 0")
    layer_weights: str = core.static(default="auto", needs="weighting='published'")

    @property  # pyright: ignore[reportAssignmentType] - it depends on hyperparameters
    def row_stochastic(self) -> bool:
        return not (self.raw_cosines or self.data_shares)

    def validate(self):
        parse_weights(self.layer_weights)

    def check(self, federation):
        shapes = federation.model_shapes
        stack = jax.tree.map(lambda x: jax.ShapeDtypeStruct((1, *x.shape), x.dtype), shapes)
        layers = compared_layers(federation.plan, stack, self.compares_heads)
        if not layers:
            raise core.InputError(
                f"{self.name} compares layers, and the model shares no kernel of one."
            )
        if self.weighting == "paper" and not any(in_stage(federation.plan, 1)):
            raise core.InputError(
                "weighting 'paper' compares heads, and this one is not shared (share)."
            )
        numbers = parse_weights(self.layer_weights)
        if numbers and len(numbers) != len(layers):
            names = ", ".join(federation.plan.blocks[b] for b in layers)
            raise core.InputError(
                f"layer_weights must be {len(layers)} numbers, one for each of {names}, got "
                f"{shown(self.layer_weights)}."
            )

    def init(self, ctx):
        count = ctx.num_clients
        stages = len(ctx.plan.grouped(self.stage).blocks) if self.weighting == "paper" else 1
        zero = jnp.zeros((count, count, stages), ctx.dtype)
        models = ctx.replicate(ctx.initial_model())
        return State(models, models, zero)

    def is_due(self, ctx):
        return ctx.t % self.gamma == 0

    def train(self, ctx, models, cohort=None, purpose=None):
        return ctx.train(models, cohort, purpose, updates_per_batch=self.local_updates)

    def round(self, ctx, state):
        models, cosines = ctx.when(
            self.is_due,
            lambda: self._routine(ctx, state),
            lambda: (state.models, state.cosines),
        )
        received = ctx.cohort.gather(models)
        trained, cohort, loss = self.train(ctx, received)
        scores = jnp.moveaxis(ctx.cohort.gather_pairs(cosines), -1, 0)
        weights = self._by_block(ctx, self._weights(ctx, scores, cohort))
        sent = ctx.upload(trained, received, cohort=cohort)
        mixed = self._aggregate(ctx, weights, sent, received)
        new_state = State(
            cohort.scatter(models, mixed), cohort.scatter(state.trained, trained), cosines
        )
        record = ctx.record(cohort, clients={"train_loss": loss}, mixing=weights)
        asked = (self.is_due(ctx) & ctx.cohort_of().mask)[:, None]
        # Clients outside the cohort take part in the routine too.
        return new_state, replace(record, up=record.up + asked, down=record.down + asked)

    def _weights(self, ctx, scores, cohort):
        """Return the factors of updates in eqs. (4), (7), without alpha, [stages, M, M]."""
        if self.raw_cosines:
            weights = jnp.where(cohort.mask, scores, 0)  # eq. (4)
        else:
            weights = mixing.softmax(scores, cohort.mask)  # eqs. (5), (6)
        if not self.data_shares:
            return weights
        return weights * mixing.by_size(ctx.sizes(), cohort.mask).astype(weights.dtype)

    def _aggregate(self, ctx, weights, trained, received):
        """Return w_i + alpha sum_j W_ij delta_j, eq. (7).

        Running statistics are averaged: stepping them could make a variance negative.
        """
        update = optax.tree.sub(trained, received)
        stepped = optax.tree.add_scale(
            received, self.server_rate, ctx.mix(weights, update, onto=update)
        )
        if len(trained) == 1:
            return stepped
        return {**ctx.mix(weights, trained, onto=trained), "params": stepped["params"]}

    def _routine(self, ctx, state):
        """Return (all clients at their mean [N, ...], S) (Alg. 1)."""
        everyone = ctx.cohort_of()
        here = everyone.mask
        mean = ctx.average(mixing.normalize(here.astype(ctx.dtype)),
                           state.models, onto=state.models)  # fmt: skip
        trained, everyone, _ = self.train(ctx, mean, cohort=everyone, purpose="routine")
        sent = ctx.upload(trained, mean, "routine", everyone)
        update = optax.tree.sub(sent, mean)
        both = (everyone.mask[:, None] & everyone.mask)[..., None]
        cosines = self._similarity(ctx, update, state.cosines)
        mean = trees.where(here, mean, state.models)
        return mean, jnp.where(both, cosines, state.cosines)

    def _similarity(self, ctx, update, cosines):
        """Return S of all clients' updates, [N, N, stages]."""
        if self.weighting == "paper":
            return of_stages(ctx.plan, update, self.stage)
        layers = compared_layers(ctx.plan, update, self.compares_heads)
        even = [1 / len(layers)] * len(layers)
        default = self.published if len(self.published) == len(layers) else even
        parts = parse_weights(self.layer_weights) or default
        return of_layers(ctx.plan, update, layers, parts)

    def _by_block(self, ctx, weights):
        """Expand [stages, M, M] to [blocks, M, M]."""
        plan = ctx.plan
        if self.weighting == "paper":
            return weights[plan.groups_of_blocks(plan.grouped(self.stage))]
        own = jnp.eye(weights.shape[-1], dtype=weights.dtype)
        is_head = jnp.arange(plan.num_blocks)[:, None, None] == plan.blocks.index(plan.head)
        return jnp.where(is_head, own, weights[0])

    def models(self, ctx, state, rows):
        named = {"personalized": state.models, "last_trained": state.trained}
        return {name: trees.take(models, rows) for name, models in named.items()}


@core.algorithm("spfl_w")
class SpflW(Spfl):
    """SPFL-w: SPFL on weights, w_i <- sum_j softmax_j(S_ij) w_j', one matrix for all layers.

    Attributes:
      layer_weights: as SPFL's, the head included: "auto" is 0.4, 0.2, 0.2, 0.2 for four layers.
      memory: weight of the old S in a new measurement (0.6 in one version of the published code);
        0 discards it.
    """

    revision = 1
    published: ClassVar[tuple[float, ...]] = (0.4, 0.2, 0.2, 0.2)
    compares_heads: ClassVar[bool] = True

    weighting: Literal["published"] = core.static(default="published")
    memory: float = core.number(default=0.0, allowed="in [0, 1)")

    def validate(self):
        super().validate()
        one = self.server_rate == 1
        core.require(one, "server_rate", self.server_rate, "1, as SPFL-w mixes models")

    def _similarity(self, ctx, update, cosines):
        new = super()._similarity(ctx, update, cosines)
        return self.memory * cosines + (1 - self.memory) * new

    def _by_block(self, ctx, weights):
        return weights[0]

    def _aggregate(self, ctx, weights, trained, received):
        return ctx.mix(weights, trained, onto=trained)


def of_stages(plan: core.LeafPlan, update: core.Stack, by: str) -> jax.Array:
    """Return the cosines of the groups of layers `LeafPlan.grouped(by)`, [N, N, stages]."""
    scores = {
        group: similarity.cosines(part, part)
        for group, (part,) in plan.compared_parts(by, update).items()
    }
    nothing = jnp.zeros_like(next(iter(scores.values())))
    groups = range(len(plan.grouped(by).blocks))
    return jnp.stack([scores.get(group, nothing) for group in groups], axis=-1)


def of_layers(
    plan: core.LeafPlan, update: core.Stack, layers: Sequence[int], weights: Sequence[float]
) -> jax.Array:
    """Return the weighted sum of the cosines of some blocks' kernels, [N, N, 1]."""
    parts = [
        part * _cosines(plan, update, lambda i, b=b: plan.block_of[i] == b, kernels=True)
        for part, b in zip(weights, layers, strict=True)
    ]
    return sum(parts[1:], start=parts[0])[..., None]


def in_stage(plan: core.LeafPlan, stage: int) -> list[bool]:
    """Return whether the server receives a leaf and it belongs to the body (0) or head (1)."""
    return [
        plan.is_trainable_shared(i) and (plan.blocks[block] == plan.head) == bool(stage)
        for i, block in enumerate(plan.block_of)
    ]


def compared_layers(plan: core.LeafPlan, stack: core.Stack, with_head: bool) -> list[int]:
    """Return the blocks with a shared kernel, in the network's order."""
    leaves = jax.tree.leaves(stack)
    seen = {
        plan.block_of[i]
        for i, leaf in enumerate(leaves)
        if plan.is_trainable_shared(i) and leaf.ndim > 2
    }
    return sorted(b for b in seen if with_head or plan.blocks[b] != plan.head)


def _cosines(plan, update, chosen, kernels=False):
    leaves = jax.tree.leaves(update)
    part = plan.select(
        update,
        lambda i: (
            plan.is_trainable_shared(i) and chosen(i) and not (kernels and leaves[i].ndim < 3)
        ),
    )
    return similarity.cosines(part, part)


def parse_weights(text: str) -> tuple[float, ...]:
    """Parse numbers such as "0.5,0.3,0.2"; () for "auto"."""
    if text == "auto":
        return ()
    try:
        numbers = tuple(float(word) for word in text.split(","))
    except (ValueError, AttributeError):
        numbers = (-1.0,)
    good = all(0 <= number < float("inf") for number in numbers) and sum(numbers) > 0
    core.require(good, "layer_weights", text, "'auto' or numbers of at least 0 such as 0.5,0.3,0.2")
    return numbers
