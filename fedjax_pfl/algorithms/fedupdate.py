"""Improving Federated Learning Personalization via Model Agnostic Meta Learning.

Yihan Jiang, Jakub Konečný, Keith Rush, Sreeram Kannan. 2019. https://arxiv.org/abs/1909.12488
"""

from dataclasses import replace

from fedjax_pfl import core, mixing, trees


@core.struct
class State:
    server: core.Model = core.per_server()
    models: core.Stack = core.per_client()


@core.algorithm("fedupdate")
class FedUpdate(core.Algorithm):
    """FedUpdate: FedAvg, then one step of every client on the averaged model (SPFL's baseline).

    "Personalized Heterogeneous FL with Gradient Similarity" (submitted to ICLR 2022) has FedUpdate
    as a baseline. The fine-tuned model is scored, and the client's next round begins with it, as in
    that paper's code. Jiang et al. themselves fine-tune a copy for evaluation only: `fedavg_ft`.

    Attributes:
      fine_tune_steps: minibatch steps on the averaged model; with 0 (and all clients) FedAvg.
    """

    batch_norm = "shared"
    server_needs = "sums"

    fine_tune_steps: int = core.static(default=1, allowed="at least 0")

    def init(self, ctx):
        model = ctx.initial_model()
        return State(model, ctx.replicate(model))

    def round(self, ctx, state):
        own = ctx.cohort.gather(state.models)
        trained, cohort, loss = ctx.train(own)
        sent = ctx.upload(trained, core.Broadcast(state.server), cohort=cohort)
        weights = mixing.by_size(ctx.sizes(), cohort.mask)
        server = ctx.aggregate(weights, sent, onto=state.server)
        averaged = ctx.average(weights, sent, onto=trained)
        steps = replace(ctx.federation.schedule, steps=self.fine_tune_steps)
        tuned, cohort, _ = ctx.train(averaged, cohort, purpose="update", schedule=steps)
        state = State(server, cohort.scatter(state.models, tuned))
        return state, ctx.record(cohort, clients={"train_loss": loss}, mixing=weights)

    def models(self, ctx, state, rows):
        named = {"personalized": trees.take(state.models, rows)}
        if ctx.plan.all_shared:
            named["global"] = core.Broadcast(state.server)
        return named
