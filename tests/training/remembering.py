"""FedAvg with momentum that outlives rounds."""

from typing import Any

import fedjax_pfl as pfl
from fedjax_pfl import mixing
from fedjax_pfl.utils.structs import per_client, per_server, struct

MOMENTUM = 0.9


@struct
class State:
    server: Any = per_server()
    optimizers: Any = per_client()


@struct
class Remembering(pfl.Algorithm):
    """FedAvg whose clients keep their momentum."""

    def init(self, ctx):
        return State(ctx.initial_model(), ctx.initial_optimizer_state())

    def round(self, ctx, state):
        trained, cohort, loss, optimizers = ctx.train(
            pfl.Broadcast(state.server), optimizer_state=ctx.cohort.gather(state.optimizers)
        )
        weights = mixing.by_size(ctx.sizes(), cohort.mask)
        server = mixing.weighted_sum(weights, trained, onto=state.server)
        kept = State(server, cohort.scatter(state.optimizers, optimizers))
        return kept, ctx.record(cohort, clients={"train_loss": loss}, mixing=weights)

    def models(self, ctx, state, rows):
        return {"personalized": pfl.Broadcast(state.server)}
