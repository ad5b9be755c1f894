"""Local training without communication, a baseline without a paper."""

from typing import Literal

from fedjax_pfl import core, trees


@core.struct
class State:
    models: core.Stack = core.per_client()


@core.algorithm("local")
class Local(core.Algorithm):
    """Local training: theta_i <- LocalSGD(theta_i). The mixing matrix is the identity.

    Attributes:
      participants: which clients train in a round. "all" ignores the participation, as sampling
        saves communication and there is none. "sampled": the sampled clients, as with other
        algorithms; a late client trains in its punctual rounds.
    """

    server_needs = "nothing"

    participants: Literal["all", "sampled"] = core.static(default="all")

    def remarks(self, federation):
        part = federation.participation
        drawn = part.cohort_size < federation.num_clients or part.poisson is not None
        if not (drawn or not part.punctual) or self.participants == "sampled":
            return super().remarks(federation)
        who = "all clients" if part.window is None else "all clients that are there"
        return [*super().remarks(federation), f"{who} train in every round, drawn or not"]

    def init(self, ctx):
        return State(ctx.replicate(ctx.initial_model()))

    def round(self, ctx, state):
        cohort = ctx.cohort_of() if self.participants == "all" else ctx.cohort
        trained = ctx.train(cohort.gather(state.models), cohort)
        models = trained.cohort.scatter(state.models, trained.models)
        record = ctx.record(trained.cohort, up=0, down=0, clients={"train_loss": trained.loss})
        return State(models), record

    def models(self, ctx, state, rows):
        return {"personalized": trees.take(state.models, rows)}
