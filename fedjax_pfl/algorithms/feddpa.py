"""Dual-Personalizing Adapter for Federated Foundation Models.

Yiyuan Yang, Guodong Long, Tao Shen, Jing Jiang, Michael Blumenstein. NeurIPS 2024.
https://arxiv.org/abs/2403.19211
"""

from dataclasses import dataclass, replace
from typing import Any, Literal

import jax
import jax.numpy as jnp

from fedjax_pfl import core, mixing, trees
from fedjax_pfl.aggregation import products
from fedjax_pfl.algorithms import fedavg
from fedjax_pfl.algorithms.common.adapter_ranks import (
    A,
    B,
    adapter_remarks,
    check_both_shared,
    check_both_trained,
    trained_adapters,
)
from fedjax_pfl.algorithms.common.modules import all_but, only

LOCAL, OWN_A, OWN_B = "local_adapters", "own_a", "own_b"
MIXING = "mixing"  # a collection beside the parameters


@dataclass(frozen=True)
class TwoSets(core.WrappedTask):
    """A network with a second set of adapters, in the module `LOCAL`.

    A model computes with the first set only, unless it has a collection `MIXING`. Then the terms of
    the second set have the weight a, those of the first 1 - a. With `anchors` in the collection, a
    is multiplied by each sample's mean cosine similarity to them, of features by the second set.
    """

    layers: tuple[tuple[str, ...], ...]

    def init(self, key, inputs):
        model = self.network.init(key, inputs)
        drawn = self.network.init(jax.random.fold_in(key, 1), inputs)["params"]
        own: dict[str, Any] = {}
        for path in self.layers:
            inner = own
            for part in path:
                inner = inner.setdefault(part, {})
            first = trees.at(drawn, path)
            inner[OWN_A], inner[OWN_B] = first[A], jnp.zeros_like(first[B])
        return {**model, "params": {**model["params"], LOCAL: own}}

    def apply(self, model, inputs, *mode):
        train = mode[0]
        how: Any = model.get(MIXING)
        if how is None or train or "anchors" not in how:
            return super().apply(model, inputs, *mode)
        by_second = {**model, MIXING: {"weight": jnp.ones_like(how["weight"])}}
        features: Any = self.network.outputs(self.own(by_second), inputs, *mode).features
        weights = how["weight"] * similarity(features, how["anchors"], how["valid"])

        def one(weight, sample):
            mixed = self.own({**model, MIXING: {"weight": weight}})
            out: Any = self.network.apply(mixed, sample[None], *mode)
            return core.Outputs(*out).logits[0]

        return core.Outputs(jax.vmap(one)(weights, inputs), {}, features)

    def own(self, model):
        """Return the network's model, with one set of adapters of twice the rank if they mix."""
        params = dict(model["params"])
        own, how = params.pop(LOCAL, None), model.get(MIXING)
        model = {name: part for name, part in model.items() if name != MIXING} | {"params": params}
        if own is None or how is None:
            return model
        for path in self.layers:
            one, other = trees.at(params, path), trees.at(own, path)
            weight = how["weight"].astype(one[B].dtype)
            both = {
                A: jnp.concatenate([one[A], other[OWN_A]], axis=1),
                B: jnp.concatenate([(1 - weight) * one[B], weight * other[OWN_B]]),
            }
            params = trees.replace_at(params, path, {**one, **both})
        return {**model, "params": params}


@core.algorithm("feddpa")
class FedDPA(fedavg.Weighted):
    """FedDPA-T: a global set of adapters, and one of each client's own.

    In each round a client first trains its own set, beside the global one with weights a and 1 - a,
    then the global set alone. It predicts with both: the weight of its own set is `max_weight`
    times the mean cosine similarity of a sample's features to those of some training samples.

    Attributes:
      local_weight: a, the weight of the own set in its training.
      max_weight: largest weight of the own set in predictions.
      prediction_weights: of the own set, by "instance", or "fixed": `max_weight` for all samples.
      instances: number of training samples that a sample is compared with.
      weighting: of the average, "uniform" as in the authors' code, or by "size".
    """

    local_weight: float = core.number(default=0.5, allowed="in [0, 1]")
    max_weight: float = core.number(default=0.5, allowed="in [0, 1]")
    prediction_weights: Literal["instance", "fixed"] = core.static(default="instance")
    instances: int = core.static(
        default=5, allowed="at least 1", needs="prediction_weights='instance'"
    )
    weighting: Literal["uniform", "size"] = core.static(default="uniform")

    @property  # pyright: ignore[reportAssignmentType] - it depends on a hyperparameter
    def unprotected(self) -> tuple[str, ...]:
        compares = self.prediction_weights == "instance"
        return ("the samples that its weights compare with",) * compares

    def prepare(self, federation):
        layers = tuple(trained_adapters(federation).values())
        if layers:
            wrap = lambda task: TwoSets.around(task, layers)  # noqa: E731
            federation = federation.with_network(wrap, (LOCAL,))
        return super().prepare(federation)

    def check(self, federation):
        check_both_shared(self.name, federation)
        check_both_trained(self.name, federation)
        if self.prediction_weights == "instance" and trained_adapters(federation):
            core.require_features(self, federation)

    def remarks(self, federation):
        return [*super().remarks(federation), *adapter_remarks(federation)]

    def local_update(self, ctx, state, received: Any):
        if not trained_adapters(ctx.federation):
            return super().local_update(ctx, state, received)
        own = self.train_own(ctx, received, purpose="local")
        others = all_but(received["params"], LOCAL)
        trained = super().local_update(ctx, state, received, cohort=own.cohort, trainable=others)
        params = {**trained.models["params"], LOCAL: own.models["params"][LOCAL]}
        return replace(trained, models={**trained.models, "params": params})

    def train_own(self, ctx, received: Any, purpose: str | None = None) -> core.Trained:
        """Train the members' own sets beside the received global one."""
        task, weight = ctx.federation.task, jnp.asarray(self.local_weight, ctx.dtype)
        own = only(received["params"], LOCAL)

        def forward_pass(model, batch, rng, broadcast, client):
            forward = task.forward({**model, MIXING: {"weight": weight}}, batch, rng)
            kept = {name: part for name, part in forward.model.items() if name != MIXING}
            return forward._replace(model=kept)

        return ctx.train(received, purpose=purpose, forward=forward_pass, trainable=own)

    def models(self, ctx, state, rows):
        received: Any = self.received(state, rows)
        if not trained_adapters(ctx.federation):
            return super().models(ctx, state, rows)
        named: dict[str, Any] = {"personalized": self.mixed(ctx, received, rows)}
        plan = ctx.plan
        if all(one or own for one, own in zip(plan.shared, plan.personal, strict=True)):
            params = {k: part for k, part in state.server["params"].items() if k != LOCAL}
            named["global"] = core.Broadcast({**state.server, "params": params})
        return named

    def mixed(self, ctx, models: Any, rows):
        """Return models of clients `rows` that predict with both sets."""
        count = len(rows)
        whole = {"weight": jnp.ones(count, ctx.dtype)}
        how: dict[str, Any] = {"weight": self.max_weight * whole["weight"]}
        if self.prediction_weights == "instance":
            key = ctx.key_for("instances")

            def drawn(seen):
                order = jax.random.uniform(key, seen.valid.shape, jnp.float32)
                most = min(self.instances, len(order))
                _, some = jax.lax.top_k(jnp.where(seen.valid, order, -1), most)
                return seen.features[some], seen.valid[some]

            seconds, everyone = {**models, MIXING: whole}, ctx.cohort_of(rows)
            (how["anchors"], how["valid"]), _ = ctx.sample_features(seconds, everyone, then=drawn)
        return {**models, MIXING: how}

    def new_client_start(self, ctx, state):
        _, private = ctx.plan.split(ctx.initial_model())
        return trees.join(state.server, private)

    def personalize(self, ctx, state, new_clients):
        """Train new clients' own sets for a round beside the global one."""
        start = trees.replicate(self.new_client_start(ctx, state), new_clients.num_clients)
        if not trained_adapters(ctx.federation):
            return super().personalize(ctx, state, new_clients)
        own = self.train_own(new_clients, start)
        return self.mixed(new_clients, own.models, new_clients.cohort.rows)


def similarity(z: jax.Array, anchors: jax.Array, valid: jax.Array) -> jax.Array:
    """Return the mean cosine similarity of features [B, d] to the valid anchors [S, d], [B]."""
    unit = [mixing.ratio(x, jnp.linalg.norm(x, axis=-1, keepdims=True)) for x in (z, anchors)]
    cosines = products.matmul(unit[0], unit[1].T)
    total = jnp.sum(jnp.where(valid, cosines, 0), axis=-1)
    return total / jnp.maximum(jnp.sum(valid), 1).astype(total.dtype)
