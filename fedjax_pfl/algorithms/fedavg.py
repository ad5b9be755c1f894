"""Communication-Efficient Learning of Deep Networks from Decentralized Data.

H. Brendan McMahan, Eider Moore, Daniel Ramage, Seth Hampson, Blaise Agüera y Arcas. AISTATS 2017.
https://arxiv.org/abs/1602.05629
"""

from dataclasses import replace
from typing import Any, Literal

import jax
import jax.numpy as jnp
import optax

from fedjax_pfl import core, mixing, trees


@core.struct
class State:
    """The state of FedAvg; algorithms built on its rounds extend it."""

    server: Any = core.per_server()  # the shared leaves
    private: Any = core.per_client()  # every client's own leaves; none where all are shared
    optimizer: Any = core.per_server()  # the server optimizer's state; None without one


@core.algorithm("fedavg")
class FedAvg(core.Algorithm):
    """Federated averaging: w <- sum_i (n_i / n) LocalSGD(w).

    The mixing matrix has rank one. Private leaves stay with their clients: each client's model is
    the server's shared leaves and its own private ones. Running statistics of normalization layers
    are averaged too; otherwise the server's model would be scored with its initial statistics.

    Algorithms that differ from FedAvg in one part of `round` override that part:

      received: the models from which members train.
      local_update: local training and the uploads.
      admitted: the members whose updates the server uses.
      weigh: the weight of each update.
      server_optimizer, or all of server_update: the server's step from the average.
      record: the metrics of a round.

    Uploads are a `Trained`, or a struct that extends it by further values.
    """

    batch_norm = "shared"
    server_needs = "sums"
    aggregator_replaces = "mean"

    def init(self, ctx: core.Context) -> State:
        server, private = ctx.plan.split(ctx.initial_model())
        optimizer = self.server_optimizer()
        memory = None if optimizer is None else optimizer.init(server["params"])
        return State(server, ctx.replicate(private), memory)

    def round(self, ctx: core.Context, state: State) -> tuple[State, core.Record]:
        trained = self.local_update(ctx, state, self.received(state, ctx.cohort.rows))
        used = replace(trained, cohort=self.admitted(ctx, trained.cohort))
        held = core.Broadcast(state.server)
        sent = replace(used, models=ctx.upload(used.models, held, cohort=used.cohort))
        weights, state = self.weigh(ctx, state, sent)
        uploads, private = ctx.plan.split(sent.models)
        mean = ctx.aggregate(weights, uploads, onto=state.server)
        state = replace(state, private=used.cohort.scatter(state.private, private))
        state = self.server_update(ctx, state, mean, weights, used)
        return state, self.record(ctx, trained, weights)

    def received(self, state: State, rows: jax.Array) -> core.Tree | core.Broadcast:
        """Return the models of clients `rows` after download."""
        return trees.assemble(state.server, trees.take(state.private, rows))

    def servers_model(self, state: State) -> core.Tree:
        """Return the server's model for a new client, with the mean of all clients' private leaves.

        It is the `new_client_start` of algorithms whose personalized models are different ones.
        """
        private = jax.tree.map(lambda x: jnp.mean(x, axis=0).astype(x.dtype), state.private)
        return trees.join(state.server, private)

    def local_update(
        self, ctx: core.Context, state: State, received: core.Tree | core.Broadcast, **options
    ) -> core.Trained:
        """Train the members locally; `options` are those of `ctx.train`."""
        return ctx.train(received, **options)

    def admitted(self, ctx: core.Context, cohort: core.Cohort) -> core.Cohort:
        """Return the members whose updates the server uses: by default those that are finite."""
        return cohort

    def weigh(self, ctx: core.Context, state: State, sent: core.Trained) -> tuple[jax.Array, State]:
        """Return (weights [M] of the updates, the state, which may remember them).

        `sent` holds the models that the server received.
        """
        return mixing.by_size(ctx.sizes(), sent.cohort.mask), state

    def server_optimizer(self) -> optax.GradientTransformation | None:
        """Return the optimizer of steps along w - mean, the pseudo-gradient; None takes the mean.

        It acts on trainable leaves; running statistics are averaged. Its hyperparameters may be
        traced.
        """
        return None

    def server_update(
        self,
        ctx: core.Context,
        state: State,
        mean: core.Tree,
        weights: jax.Array,
        used: core.Trained,
    ) -> State:
        """Return the state after the round.

        Args:
          mean: average of the uploads, like `state.server`; `state.server` itself if all weights
            are 0.
          weights: [M].
          used: the admitted members' results of local training.
        """
        optimizer = self.server_optimizer()
        if optimizer is None:
            return replace(state, server=mean)
        params, target = state.server["params"], mean["params"]
        gradient = jax.tree.map(jnp.subtract, params, target)
        step, memory = optimizer.update(gradient, state.optimizer, params)
        # The step is added to the mean instead of w, so that sgd(1.0) gives FedAvg's bits.
        params = jax.tree.map(lambda m, g, s: m + (g + s).astype(m.dtype), target, gradient, step)
        arrived = ctx.arrived(weights)  # without uploads momentum does not change
        server, memory = jax.tree.map(
            lambda new, old: jnp.where(arrived, new, old),
            ({**mean, "params": params}, memory),
            (state.server, state.optimizer),
        )
        return replace(state, server=server, optimizer=memory)

    def record(
        self,
        ctx: core.Context,
        trained: core.Trained,
        weights: jax.Array,
        up=1,
        down=1,
        **noted: jax.Array,
    ) -> core.Record:
        """Return the record of all members that took part; `noted` are further values [M]."""
        clients = {"train_loss": trained.loss, **noted}
        return ctx.record(trained.cohort, up=up, down=down, clients=clients, mixing=weights)

    def models(
        self, ctx: core.Context, state: State, rows: jax.Array
    ) -> dict[str, core.Tree | core.Broadcast]:
        received = self.received(state, rows)
        if isinstance(received, core.Broadcast):
            return {"personalized": received, "global": received}
        return {"personalized": received}


class Weighted(FedAvg):
    """FedAvg whose mean is weighted by the members' numbers of samples, or uniform.

    A subclass has a field `weighting`: "size" or "uniform".
    """

    weighting: Literal["size", "uniform"]

    def weigh(self, ctx, state, sent):
        if self.weighting == "size":
            return super().weigh(ctx, state, sent)
        return mixing.normalize(sent.cohort.mask.astype(ctx.dtype)), state
