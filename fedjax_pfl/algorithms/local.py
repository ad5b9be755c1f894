"""Local training: every client for itself."""

from typing import Any

from fedjax_pfl import trees
from fedjax_pfl.algorithm import Algorithm
from fedjax_pfl.registry import method
from fedjax_pfl.structs import per_client, struct


@struct
class State:
    models: Any = per_client()


@method("local")
class Local(Algorithm):
    """No server: theta_i <- LocalSGD(theta_i). The mixing matrix is the identity.

    All clients train in every round, whatever the participation: sampling is the server's way to
    save traffic, and here is none.
    """

    def init(self, ctx):
        return State(ctx.replicate(ctx.initial_model()))

    def round(self, ctx, state):
        trained = ctx.train(state.models, ctx.everyone())
        models = trained.cohort.scatter(state.models, trained.models)
        record = ctx.record(trained.cohort, up=0, down=0, clients={"train_loss": trained.loss})
        return State(models), record

    def models(self, ctx, state, rows):
        return {"personalized": trees.take(state.models, rows)}
