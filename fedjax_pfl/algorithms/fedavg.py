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
    """The state of algorithms built on FedAvg's rounds; one that keeps more inherits from it."""

    server: Any = core.per_server()  # the shared leaves
    private: Any = core.per_client()  # every client's own leaves; none where all are shared
    optimizer: Any = core.per_server()  # the server optimizer's state; None without one


@core.algorithm("fedavg")
class FedAvg(core.Algorithm):
    """Federated averaging: w <- sum_i (n_i / n) LocalSGD(w).

    The mixing matrix has rank one. Private leaves stay with their clients: each client's model is
    the server's shared leaves and its own private ones. Running statistics of normalisation layers
    are averaged too; otherwise the server's model would be scored with its initial statistics.

    Algorithms that differ from it in a part of `round` override that part:

      received: the models that members begin with.
      local_update: what members do with them, and what they send.
      admitted: the members whose updates the server uses.
      weigh: how much each update counts.
      server_optimizer, or all of server_update: what the server does with the average.
      record: the metrics of a round.

    What members send is a `Trained`, or a struct that inherits from it where they send more.
    """

    batch_norm = "shared"
    sees = "sums"

    def init(self, ctx: core.Context) -> State:
        server, private = ctx.plan.split(ctx.initial_model())
        optimizer = self.server_optimizer()
        memory = None if optimizer is None else optimizer.init(server["params"])
        return State(server, ctx.replicate(private), memory)

    def round(self, ctx: core.Context, state: State) -> tuple[State, core.Record]:
        trained = self.local_update(ctx, state, self.received(state, ctx.cohort.rows))
        used = replace(trained, cohort=self.admitted(ctx, trained.cohort))
        sent = replace(used, models=ctx.upload(used.models, core.Broadcast(state.server)))
        weights, state = self.weigh(ctx, state, sent)
        uploads, private = ctx.plan.split(sent.models)
        mean = mixing.weighted_sum(weights, uploads, onto=state.server)
        state = replace(state, private=used.cohort.scatter(state.private, private))
        state = self.server_update(ctx, state, mean, weights, used)
        return state, self.record(ctx, trained, weights)

    def received(self, state: State, rows: jax.Array) -> core.Tree | core.Broadcast:
        """The models that clients `rows` hold after download."""
        return trees.assemble(state.server, trees.take(state.private, rows))

    def servers_model(self, state: State) -> core.Tree:
        """The server's model as a new client gets it: private leaves are the mean of all clients'.

        It is the `new_client_start` of algorithms whose personalized models are others than these.
        """
        private = jax.tree.map(lambda x: jnp.mean(x, axis=0).astype(x.dtype), state.private)
        return trees.join(state.server, private)

    def local_update(
        self, ctx: core.Context, state: State, received: core.Tree | core.Broadcast, **options
    ) -> core.Trained:
        """The members' local training; `options` are those of `ctx.train`."""
        return ctx.train(received, **options)

    def admitted(self, ctx: core.Context, cohort: core.Cohort) -> core.Cohort:
        """The members whose updates the server uses; by default those whose training went well."""
        return cohort

    def weigh(self, ctx: core.Context, state: State, sent: core.Trained) -> tuple[jax.Array, State]:
        """(weights [M] of the updates, the state with what the server remembers of weighing).

        `sent` has the models that the server received.
        """
        return mixing.by_size(ctx.sizes(), sent.cohort.mask), state

    def server_optimizer(self) -> optax.GradientTransformation | None:
        """Takes the server's steps along w - mean, its pseudo-gradient; None takes the mean itself.

        It acts on trainable leaves; running statistics are averaged. Its numbers may be traced.
        """
        return None

    def server_update(
        self,
        ctx: core.Context,
        state: State,
        mean: core.Tree,
        weights: jax.Array,
        sent: core.Trained,
    ) -> State:
        """The state after the round.

        Args:
          mean: average of the uploads, like `state.server`; `state.server` itself where nobody
            has any weight.
          weights: [M].
          sent: the admitted members' own results, as they trained them.
        """
        optimizer = self.server_optimizer()
        if optimizer is None:
            return replace(state, server=mean)
        params, target = state.server["params"], mean["params"]
        gradient = jax.tree.map(jnp.subtract, params, target)
        step, memory = optimizer.update(gradient, state.optimizer, params)
        # From the mean on, not from w: a step of -gradient, as sgd(1.0) takes it, is FedAvg's round
        # to the bit.
        params = jax.tree.map(lambda m, g, s: m + (g + s).astype(m.dtype), target, gradient, step)
        arrived = jnp.any(weights != 0)  # momentum stands still while no upload arrives
        server, memory = jax.tree.map(
            lambda new, old: jnp.where(arrived, new, old),
            ({**mean, "params": params}, memory),
            (state.server, state.optimizer),
        )
        return replace(state, server=server, optimizer=memory)

    def record(
        self,
        ctx: core.Context,
        sent: core.Trained,
        weights: jax.Array,
        up=1,
        down=1,
        **noted: jax.Array,
    ) -> core.Record:
        """The round's record, of all members that took part; `noted` are numbers [M] of theirs."""
        clients = {"train_loss": sent.loss, **noted}
        return ctx.record(sent.cohort, up=up, down=down, clients=clients, mixing=weights)

    def models(
        self, ctx: core.Context, state: State, rows: jax.Array
    ) -> dict[str, core.Tree | core.Broadcast]:
        received = self.received(state, rows)
        if isinstance(received, core.Broadcast):
            return {"personalized": received, "global": received}
        return {"personalized": received}


class Weighted(FedAvg):
    """FedAvg whose mean is by the members' numbers of samples, or uniform.

    A subclass has a field `weighting`: "size" or "uniform".
    """

    weighting: Literal["size", "uniform"]

    def weigh(self, ctx, state, sent):
        if self.weighting == "size":
            return super().weigh(ctx, state, sent)
        return mixing.normalize(sent.cohort.mask.astype(ctx.dtype)), state
