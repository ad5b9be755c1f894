"""No Fear of Heterogeneity: Classifier Calibration for Federated Learning with Non-IID Data.

Mi Luo, Fei Chen, Dapeng Hu, Yifan Zhang, Jian Liang, Jiashi Feng. NeurIPS 2021.
https://arxiv.org/abs/2106.05001
"""

from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_pfl import core, training
from fedjax_pfl.aggregation import products
from fedjax_pfl.algorithms import fedavg

HEAD = "head"


@core.struct
class State(fedavg.State):
    head: Any = core.per_server()  # as it was last calibrated, or of the last average


@core.algorithm("ccvr")
class CCVR(fedavg.FedAvg):
    """CCVR: FedAvg whose head is trained on virtual features of all classes.

    After the last round, all clients send the sums of features z and z z^T of each of their classes
    in the server's model, and the numbers of samples. The server draws virtual features of class c
    from the Gaussian with the mean and the covariance of all clients' samples, and trains the head
    on them by SGD, at the round's learning rate and with the clients' size of minibatches.

    Attributes:
      per_class: virtual features of each class that two samples have.
      epochs: passes over the virtual features.
      every: calibrate a copy of the head after every round; training does not go on from it.
    """

    needs_classes = True
    absent_idle = False
    unprotected = ("the features of its classes",)

    per_class: int = core.static(default=2000, allowed="at least 1")
    epochs: int = core.static(default=10, allowed="at least 0")
    every: bool = False

    def check(self, federation):
        core.require_whole_models(self, federation)
        core.require_features(self, federation)
        if HEAD not in federation.model_shapes["params"]:
            raise core.InputError("ccvr trains the layer called head, which is frozen or missing.")

    def round_remarks(self, federation, rounds):
        if not self.epochs:
            return ["epochs is 0: FedAvg's head is not calibrated"]
        when = "after every round" if self.every else "after the last round"
        return [f"the head is calibrated {when}, on virtual features"]

    def init(self, ctx):
        return State(**vars(super().init(ctx)), head=ctx.initial_model()["params"][HEAD])

    def round(self, ctx, state: State):
        after, record = super().round(ctx, state)
        due = self.every | (ctx.t + 1 == ctx.num_rounds)
        punctual = ctx.reachable()
        everyone = replace(ctx, cohort=ctx.cohort_of().masked(punctual))
        sizes, plain = everyone.sizes(), after.server["params"][HEAD]
        head, numbers = ctx.when(
            due,
            lambda: self.calibrated(everyone, after.server),
            lambda: (plain, jnp.zeros_like(sizes)),
        )
        record = replace(record, clients=record.clients | {"numbers_up": numbers})
        record = replace(record, down=record.down + (due & punctual)[:, None])
        return replace(after, head=head), record

    def calibrated(self, ctx, model):
        """Return (the head, trained on virtual features, and what all clients sent [N])."""
        sums, cohort = ctx.class_sums(core.Broadcast(model), second="scatter")
        none = jax.tree.map(jnp.zeros_like, sums)
        sent = ctx.upload(sums, none, "class_sums", cohort, compressed=False)
        total = jax.tree.map(lambda leaf: jnp.sum(leaf, axis=0), sent)

        features, labels, valid = self.virtual(ctx.key_for("virtual"), total)
        head = self.trained(ctx, model, training.Batch(features.astype(ctx.dtype), labels, valid))
        width = features.shape[1]
        held = jnp.sum(sums.counts > 0, axis=1, dtype=jnp.int32)
        return head, (width + width * (width + 1) // 2) * held

    def virtual(self, key, sums: training.ClassSums) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Return features [C n, d], labels, and which are drawn: those of classes with samples."""
        classes, width = sums.totals.shape
        shape = classes, self.per_class, width
        drawn = jax.random.normal(key, shape, sums.totals.dtype)
        # One class at a time: batched eigenvalue problems may deadlock on several CPU devices.
        known = drawn, sums.means, sums.counts, sums.second
        features = lax.map(lambda one: from_gaussian(*one), known)
        labels = jnp.repeat(jnp.arange(classes), self.per_class)
        return features.reshape(-1, width), labels, (sums.counts > 1)[labels]

    def trained(self, ctx, model, samples: training.Batch) -> core.Tree:
        """Return the model's head after SGD on the samples."""
        task, rate = ctx.federation.task, ctx.learning_rate
        count = len(samples.labels)
        size = min(ctx.federation.schedule.batch_size, count)
        some = training.Schedule(self.epochs, batch_size=size)
        valid = jnp.sum(samples.valid)
        first = jnp.argsort(~samples.valid, stable=True)  # those that are drawn

        def step(order, head, k):
            at, used = some.positions(order, k, valid)
            batch = jax.tree.map(lambda leaf: leaf[at[0]], samples)
            batch = replace(batch, valid=used[0])

            def loss(head):
                params = {**model["params"], HEAD: head}
                return task.mean_loss(
                    task.classify({**model, "params": params}, batch.inputs), batch
                )

            gradient = jax.grad(loss)(head)
            return jax.tree.map(lambda p, g: p - (rate * g).astype(p.dtype), head, gradient), None

        def one_pass(head, epoch):
            key = jax.random.fold_in(ctx.key_for("calibration"), epoch)
            order = first[some.order(key, valid, count)]
            steps = jnp.arange(some.steps_per_epoch(count), dtype=jnp.int32)
            return lax.scan(partial(step, order), head, steps)

        return lax.scan(one_pass, model["params"][HEAD], jnp.arange(self.epochs))[0]

    def models(self, ctx, state: State, rows):
        named = super().models(ctx, state, rows)
        model = named["global"].model
        own = {**model, "params": {**model["params"], HEAD: state.head}}
        return named | {"personalized": core.Broadcast(own)}

    def new_client_start(self, ctx, state):
        return self.servers_model(state)


def from_gaussian(drawn, mean, count, scatter) -> jax.Array:
    """Return features [n, d] with a class's mean and covariance, of standard normal ones.

    Args:
      drawn: [n, d].
      mean, count, scatter: the mean [d] of z, the number of samples, and the sum of z z^T [d, d].
    """
    spread = scatter - count * jnp.outer(mean, mean)
    variances, axes = jnp.linalg.eigh(spread / jnp.maximum(count - 1, 1))
    least = len(mean) * jnp.finfo(mean.dtype).eps * variances[-1]
    deviations = jnp.sqrt(jnp.where(variances > least, variances, 0))
    root = products.matmul(axes * deviations, axes.T)
    return mean + products.matmul(drawn, root)
