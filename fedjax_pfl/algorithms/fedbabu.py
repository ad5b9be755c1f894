"""FedBABU: Towards Enhanced Representation for Federated Image Classification.

Jaehoon Oh, Sangmook Kim, Se-Young Yun. ICLR 2022. https://arxiv.org/abs/2106.06042
"""

from dataclasses import replace
from typing import Literal

from fedjax_pfl import core, training, trees
from fedjax_pfl.algorithms.fedper import PartlyShared


@core.algorithm("fedbabu")
class FedBabu(PartlyShared):
    """FedBABU: FedAvg of the body, under a random head that stays fixed.

    Neither momentum nor weight decay moves the head. After the last round each client fine-tunes a
    copy of the model; before that, all clients are scored with the global model.

    Attributes:
      weighting: "uniform" over the members (the authors), or by "size".
      fine_tune_epochs: local epochs of fine-tuning; the authors take 5, PFLlib 10.
      fine_tune_rate: its learning rate, independent of the rounds' schedule. The authors use
        the last rate of their rounds: 0.1, divided by ten twice.
      fine_tune_momentum: of its SGD, which has no weight decay.
      part: the parameters that it trains: the "full" model, the "head" or the "body".
    """

    share = "body"

    weighting: Literal["size", "uniform"] = core.static(default="uniform")
    fine_tune_epochs: int = core.static(default=5, allowed="at least 0")
    fine_tune_rate: float = core.number(default=1e-3, allowed="above 0")
    fine_tune_momentum: float = core.static(default=0.9, allowed="in [0, 1)")
    part: Literal["full", "head", "body"] = core.static(default="full")

    def prepare(self, federation):
        if len(federation.plan.layers) == 1:
            raise core.InputError(
                "fedbabu trains a body under a frozen head, and this network is only a head."
            )
        return super().prepare(federation.with_frozen("head"))

    def adaptation(self):
        return training.Adaptation(
            epochs=self.fine_tune_epochs,
            leaves="all" if self.part == "full" else self.part,
            when="last",
            learning_rate=self.fine_tune_rate,
            optimizer=training.SGD(momentum=self.fine_tune_momentum),
        )

    def models(self, ctx, state, rows):
        plan = ctx.plan
        if not all(shared or plan.is_frozen(i) for i, shared in enumerate(plan.shared)):
            return super().models(ctx, state, rows)
        model = core.Broadcast(trees.join(state.server, trees.row(state.private, 0)))
        return {"personalized": model, "global": model}

    def personalize(self, ctx, state, new_clients):
        """Fine-tune copies of the global model, as for training clients.

        Where the new clients' schedule counts steps, it replaces `fine_tune_epochs`.
        """
        how = replace(self.adaptation(), steps=new_clients.federation.schedule.steps)
        start = core.Broadcast(self.new_client_start(ctx, state))
        return new_clients.adapt(start, new_clients.cohort.rows, how)
