"""Own models of all clients, which are pulled to the server's model."""

from fedjax_pfl import core, training, trees
from fedjax_pfl.algorithms import fedavg


@core.struct
class State(fedavg.State):
    own: core.Stack = core.per_client()  # each client's own model


class OwnModels(fedavg.Weighted):
    """FedAvg beside own models, which start at the common initial model and are scored.

    A subclass has the field `proximal_weight`, lambda in g(v) + lambda (v - w), and trains the
    clients' own models.
    """

    proximal_weight: float

    def init(self, ctx):
        return State(**vars(super().init(ctx)), own=ctx.replicate(ctx.initial_model()))

    def near(self, state: State):
        """Return the options of `ctx.train` that pull a model to the server's."""
        return {
            "extra_loss": training.proximal(self.proximal_weight),
            "broadcast": state.server["params"],
        }

    def models(self, ctx, state: State, rows):
        return super().models(ctx, state, rows) | {"personalized": trees.take(state.own, rows)}

    def new_client_start(self, ctx, state):
        return self.servers_model(state)

    def personalize(self, ctx, state: State, new_clients):
        return super().personalize(ctx, state, new_clients, **self.near(state))
