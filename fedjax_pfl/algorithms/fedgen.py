"""Data-Free Knowledge Distillation for Heterogeneous Federated Learning.

Zhuangdi Zhu, Junyuan Hong, Jiayu Zhou. ICML 2021. https://arxiv.org/abs/2105.10056
"""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import lax

from fedjax_pfl import core, training
from fedjax_pfl.aggregation import products
from fedjax_pfl.algorithms import fedavg
from fedjax_pfl.algorithms.common.hypernetwork import linear
from fedjax_pfl.algorithms.common.modules import dense, initial_dense_norm

DRAWN = 7  # what a step's key is folded with for generated samples


@core.struct
class State(fedavg.State):
    """The state of FedAvg and the server's generator.

    Attributes:
      generator, memory: its parameters and Adam's state.
      counts: int32 [N, C], the samples of each class that members reported.
    """

    generator: Any = core.per_server()
    memory: Any = core.per_server()
    counts: jax.Array = core.per_client()


@core.algorithm("fedgen")
class FedGen(fedavg.FedAvg):
    """FedGen: FedAvg whose clients also learn from features that a generator of the server draws.

    G(y, noise) maps a class and uniform noise to features. Clients add weight * CE(h(G(y)), y) to
    their loss, for as many labels y as a minibatch has rows, drawn by their frequencies among all
    clients that took part; in the first round there is none. After it the server trains G to
    minimize the cross-entropy of sum_i p_i h_i(G(y)), the members' weighted mean logits.

    Attributes:
      weight: of the generated features in the local loss.
      generator_rate, generator_steps, generator_batch: Adam's learning rate, its steps in a round,
        and the samples in each.
      noise_width, hidden_width: numbers of noise and of the generator's hidden layer.
    """

    needs_classes = True
    server_needs = "models"
    also_sent = ("class counts",)

    weight: float = core.number(default=1.0, allowed="at least 0")
    generator_rate: float = core.number(default=3e-4, allowed="at least 0")
    generator_steps: int = core.static(default=50, allowed="at least 1")
    generator_batch: int = core.static(default=32, allowed="at least 2")
    noise_width: int = core.static(default=32, allowed="at least 1")
    hidden_width: int = core.static(default=256, allowed="at least 1")

    def check(self, federation):
        super().check(federation)
        core.require_features(self, federation)

    def init(self, ctx):
        classes, width = ctx.federation.data.num_classes, ctx.federation.num_features
        first, kernel, bias = jax.random.split(jax.random.fold_in(ctx.key_for("generator"), 0), 3)
        inner, dtype = self.hidden_width, ctx.dtype
        normed = initial_dense_norm(first, self.noise_width + classes, inner, dtype)
        del normed["bias"]  # the normalization would cancel it
        generator = {
            "hidden": normed,
            "out": {"kernel": linear(kernel, (inner, width), inner, dtype),
                    "bias": linear(bias, (width,), inner, dtype)},
        }  # fmt: skip
        none = jnp.zeros((ctx.num_clients, classes), jnp.int32)
        memory = optax.adam(self.generator_rate).init(generator)
        return State(**vars(super().init(ctx)), generator=generator, memory=memory, counts=none)

    def draw(self, key, generator, counts, size):
        """Return (features [B, d], classes [B]) that the generator draws by counts [C]."""
        of_class, of_noise = jax.random.split(key)
        dtype, known = generator["out"]["bias"].dtype, jnp.any(counts > 0)
        chance = jnp.log(jnp.maximum(counts, 1).astype(dtype))
        chance = jnp.where((counts > 0) | ~known, chance, -jnp.inf)
        labels = jax.random.categorical(of_class, chance, shape=(size,))
        noise = jax.random.uniform(of_noise, (size, self.noise_width), dtype)
        return generated(generator, noise, labels, len(counts)), labels

    def local_update(self, ctx, state: State, received):
        task = ctx.federation.task

        def forward_pass(model, batch, rng, broadcast, client):
            forward, (generator, counts) = task.forward(model, batch, rng), broadcast
            key = jax.random.fold_in(rng, DRAWN)
            z, labels = self.draw(key, generator, counts, len(batch.valid))
            logits, every = task.computed(task.classify, model, z), jnp.ones_like(batch.valid)
            seen = training.ForwardedBatch(z, labels, every, logits, z)
            loss = jnp.where(jnp.any(counts > 0), self.weight * task.mean_loss(logits, seen), 0)
            return forward._replace(loss=forward.loss + loss.astype(forward.loss.dtype))

        known = state.generator, jnp.sum(state.counts, axis=0)
        return super().local_update(ctx, state, received, forward=forward_pass, broadcast=known)

    def weigh(self, ctx, state: State, sent):
        weights, _ = super().weigh(ctx, state, sent)
        reported = ctx.federation.data.class_counts[sent.cohort.rows]
        counts = sent.cohort.scatter(state.counts, reported.astype(jnp.int32))
        task, total, rule = (
            ctx.federation.task,
            jnp.sum(counts, axis=0),
            optax.adam(self.generator_rate),
        )

        def step(carry, key):
            def loss(generator):
                z, labels = self.draw(key, generator, total, self.generator_batch)
                classify = jax.vmap(lambda model: task.computed(task.classify, model, z))
                shares = weights.astype(z.dtype)[:, None, None]
                logits = jnp.sum(shares * classify(sent.models), axis=0)
                every = jnp.ones(labels.shape, bool)
                return task.mean_loss(logits, training.ForwardedBatch(z, labels, every, logits, z))

            generator, memory = carry
            moved, memory = rule.update(jax.grad(loss)(generator), memory, generator)
            return (optax.apply_updates(generator, moved), memory), None

        keys = jax.random.split(ctx.key_for("generator"), self.generator_steps)
        before = state.generator, state.memory
        after = lax.scan(step, before, keys)[0]
        arrived = jnp.any(weights != 0)
        generator, memory = jax.tree.map(lambda a, b: jnp.where(arrived, a, b), after, before)
        return weights, replace(state, generator=generator, memory=memory, counts=counts)

    def record(self, ctx, trained, weights, up=1, down=1, **noted):
        shapes = jax.eval_shape(lambda: self.init(ctx).generator)
        size = sum(leaf.size for leaf in jax.tree.leaves(shapes))
        return ctx.record(
            trained.cohort, up=up, down=down, numbers_up=ctx.federation.data.num_classes,
            numbers_down=size, clients={"train_loss": trained.loss, **noted}, mixing=weights,
        )  # fmt: skip

    def personalize(self, ctx, state: State, new_clients):
        start = core.Broadcast(self.new_client_start(ctx, state))
        return self.local_update(new_clients, state, start).models


def generated(generator, noise, labels, classes) -> jax.Array:
    """Return the generator's features [B, d]; its hidden layer is normalized over the batch."""
    inputs = jnp.concatenate([noise, jax.nn.one_hot(labels, classes, dtype=noise.dtype)], axis=1)
    hidden = products.matmul(inputs, generator["hidden"]["kernel"])
    hidden = (hidden - jnp.mean(hidden, axis=0)) * lax.rsqrt(jnp.var(hidden, axis=0) + 1e-5)
    hidden = hidden * generator["hidden"]["scale"] + generator["hidden"]["offset"]
    return dense(generator["out"], jax.nn.relu(hidden))
