"""FedAvg, and FedAvg with fine-tuning at evaluation."""

from typing import Any

import jax

from fedjax_pfl import trees
from fedjax_pfl.aggregation import leaf_plan, mixing
from fedjax_pfl.contract.algorithm import Algorithm
from fedjax_pfl.contract.registry import algorithm
from fedjax_pfl.errors import require
from fedjax_pfl.federation.adaptation import Adaptation
from fedjax_pfl.structs import Broadcast, per_client, per_server, static, struct


@struct
class State:
    """`server` holds the shared leaves, `private` every client's own (none for plain FedAvg)."""

    server: Any = per_server()
    private: Any = per_client()


@algorithm("fedavg")
class FedAvg(Algorithm):
    """Federated averaging (McMahan et al. 2017): w <- sum_i (n_i / n) LocalSGD(w).

    The mixing matrix has rank one. Under a leaf plan with private leaves those stay with their
    clients, each client's model being the server's leaves and its own. Running statistics of
    normalisation layers are averaged too: the server's model would otherwise be scored with those
    it began with.
    """

    batch_norm = "shared"

    def init(self, ctx):
        server, private = ctx.plan.split(ctx.initial_model())
        return State(server, ctx.replicate(private))

    def received(self, state, rows):
        """The models that clients `rows` hold after download."""
        if not jax.tree.leaves(state.private):
            return Broadcast(state.server)
        server = trees.replicate(state.server, rows.shape[0])
        return leaf_plan.join(server, trees.take(state.private, rows))

    def train(self, ctx, models):
        """The clients' part of a round."""
        return ctx.train(models)

    def weights(self, ctx, cohort):
        """Parts of the members in the average, [M]."""
        return mixing.by_size(ctx.sizes(), cohort.mask)

    def round(self, ctx, state):
        trained, cohort, loss = self.train(ctx, self.received(state, ctx.cohort.rows))
        weights = self.weights(ctx, cohort)
        uploads, private = ctx.plan.split(trained)
        server = mixing.weighted_sum(weights, uploads, onto=state.server)
        state = State(server, cohort.scatter(state.private, private))
        return state, ctx.record(cohort, clients={"train_loss": loss}, mixing=weights)

    def models(self, ctx, state, rows):
        received = self.received(state, rows)
        if isinstance(received, Broadcast):
            return {"personalized": received, "global": received}
        return {"personalized": received}


@algorithm("fedavg_ft")
class FedAvgFineTuned(FedAvg):
    """FedAvg whose clients fine-tune a copy of the global model before they use it (Wang 2019).

    Training is FedAvg's; the copies are discarded after evaluation. The papers do not state the
    number of epochs: one, at the round's learning rate.
    """

    fine_tune_epochs: int = static(1)

    def validate(self):
        require(self.fine_tune_epochs >= 0, "fine_tune_epochs", self.fine_tune_epochs, "at least 0")

    def adaptation(self):
        return Adaptation(epochs=self.fine_tune_epochs)
