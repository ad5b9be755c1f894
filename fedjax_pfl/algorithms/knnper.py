"""Personalized Federated Learning through Local Memorization.

Othmane Marfoq, Giovanni Neglia, Laetitia Kameni, Richard Vidal. ICML 2022.
https://arxiv.org/abs/2111.09360
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_pfl import core, mixing, trees
from fedjax_pfl.aggregation import products
from fedjax_pfl.algorithms import fedavg

MEMORY = "memory"
WEIGHTS = np.arange(11) / 10  # from which validation samples choose


@dataclass(frozen=True)
class Remembering(core.WrappedTask):
    """A network whose models may remember samples, in a collection `MEMORY`.

    In evaluation such a model has the logarithms of lambda q + (1 - lambda) p as logits. p are the
    network's own probabilities, q the votes of the `neighbours` nearest samples in its memory.
    """

    neighbours: int

    def apply(self, model, inputs, *mode):
        train, *_ = mode
        own = {name: part for name, part in model.items() if name != MEMORY}
        out = self.network.outputs(own, inputs, *mode)
        if train or MEMORY not in model:
            return out
        memory = model[MEMORY]
        weight = jnp.where(jnp.any(memory["valid"]), memory["weight"], 0)
        votes = self.votes(memory, out.features, out.logits.shape[1])
        mixed = weight * votes + (1 - weight) * jax.nn.softmax(out.logits)
        return out._replace(logits=jnp.log(jnp.maximum(mixed, jnp.finfo(mixed.dtype).tiny)))

    def votes(self, memory, z, classes: int) -> jax.Array:
        """Return q, [B, C], of features z [B, d]."""
        keys, valid = memory["features"], memory["valid"]
        squares = jnp.sum(jnp.square(z), axis=1)[:, None] + jnp.sum(jnp.square(keys), axis=1)
        apart = jnp.maximum(squares - 2 * products.matmul(z, keys.T), 0)
        near = jnp.where(valid, -apart / (z.shape[1] * memory["scale"]), -jnp.inf)
        near, at = jax.lax.top_k(near, min(self.neighbours, len(valid)))
        weights = jnp.where(near > -jnp.inf, jnp.exp(near - near[:, :1]), 0)
        of_class = jax.nn.one_hot(memory["labels"][at], classes, dtype=weights.dtype)
        return mixing.normalize(jnp.sum(weights[..., None] * of_class, axis=1))


@core.algorithm("knnper")
class KnnPer(fedavg.FedAvg):
    """kNN-Per: FedAvg, whose clients also ask the nearest of their own samples.

    A client predicts lambda q + (1 - lambda) p. p are the probabilities of FedAvg's model, q the
    votes of the k nearest of its training samples, with normalized weights
    exp(-|z - z'|^2 / (d sigma)) by the distances of features z, z' in R^d.

    Attributes:
      neighbours: k.
      weight: lambda; 0: FedAvg.
      tuned: choose lambda from 0, 0.1, ..., 1 by each client's accuracy on its validation samples,
        the smallest of the best; `weight` is for clients without any.
      scale: sigma.
    """

    needs_classes = True
    unprotected = ("the samples that its model remembers",)

    neighbours: int = core.static(default=7, allowed="at least 1")
    weight: float = core.number(default=0.5, allowed="in [0, 1]")
    tuned: bool = core.static(default=False)
    scale: float = core.number(default=1.0, allowed="above 0")

    @property  # pyright: ignore[reportAssignmentType] - it depends on a hyperparameter
    def needs_validation(self) -> bool:
        return self.tuned

    def prepare(self, federation):
        wrapped = federation.with_network(lambda task: Remembering.around(task, self.neighbours))
        return super().prepare(wrapped)

    def check(self, federation):
        core.require_features(self, federation)

    def models(self, ctx, state, rows):
        named = super().models(ctx, state, rows)
        return named | {"personalized": self.remembering(ctx, named["personalized"], rows)}

    def remembering(self, ctx, models: core.Stack | core.Broadcast, rows) -> core.Stack:
        """Return the models of clients `rows` with memories of their training samples."""
        known, _ = ctx.sample_features(models, ctx.cohort_of(rows))
        count, dtype = len(rows), known.features.dtype
        memory = {
            "features": known.features,
            "labels": known.labels,
            "valid": known.valid,
            "scale": jnp.full((count,), self.scale, dtype),
            "weight": jnp.full((count,), self.weight, dtype),
        }
        together = isinstance(models, core.Broadcast)
        stack: Any = trees.replicate(models.model, count) if together else models
        if self.tuned:
            memory["weight"] = self.best_weights(ctx, {**stack, MEMORY: memory}, rows)
        return {**stack, MEMORY: memory}

    def best_weights(self, ctx, models: dict[str, Any], rows) -> jax.Array:
        """Return lambda, [k], by the accuracies on validation samples."""
        task, grid = ctx.federation.task, jnp.asarray(WEIGHTS, ctx.dtype)

        def count(right, batch, rng, broadcast, client):
            own = client.operand

            def correct(weight):
                model = {**own, MEMORY: {**own[MEMORY], "weight": weight}}
                hits = jnp.argmax(task.predict(model, batch.inputs), axis=1) == batch.labels
                return jnp.sum(hits & batch.valid, dtype=jnp.int32)

            return right + jax.vmap(correct)(grid)

        once = ctx.federation.schedule.one_pass()
        right, *_ = ctx.run_clients(
            count, core.Broadcast(jnp.zeros(grid.shape, jnp.int32)), rows=rows, operands=models,
            split="validation", schedule=once, purpose="validation",
        )  # fmt: skip
        some = ctx.federation.data.validation.size[rows] > 0
        return jnp.where(some, grid[jnp.argmax(right, axis=1)], models[MEMORY]["weight"])

    def new_client_start(self, ctx, state):
        return self.servers_model(state)

    def personalize(self, ctx, state, new_clients):
        """Return the server's model with the new clients' memories."""
        start = core.Broadcast(self.new_client_start(ctx, state))
        return self.remembering(new_clients, start, new_clients.cohort.rows)
