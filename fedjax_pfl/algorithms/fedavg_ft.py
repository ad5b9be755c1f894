"""Federated Evaluation of On-device Personalization.

Kangkang Wang, Rajiv Mathews, Chloé Kiddon, Hubert Eichner, Françoise Beaufays, Daniel Ramage. 2019.
https://arxiv.org/abs/1910.10252
"""

from fedjax_pfl import core, training
from fedjax_pfl.algorithms.fedavg import FedAvg


@core.algorithm("fedavg_ft")
class FedAvgFineTuned(FedAvg):
    """FedAvg whose clients fine-tune a copy of the global model before they use it.

    Training is FedAvg's; the copies are discarded after evaluation. The papers do not state the
    number of epochs: one, at the round's learning rate.

    Attributes:
      fine_tune_epochs: F, epochs of fine-tuning.
      final_only: fine-tune only after the last round, for max(floor(F n_i / B), F) minibatches, as
        the published code of Ditto does; otherwise F epochs whenever models are scored.
      fine_tune_proximal_weight: with `final_only`, weight lambda of a term (lambda / 2) |v - w|^2
        that keeps the copy v near the server's model w.
    """

    fine_tune_epochs: int = core.static(default=1, allowed="at least 0")
    final_only: bool = core.static(default=False)
    fine_tune_proximal_weight: float = core.number(
        default=0.0, allowed="at least 0", needs="final_only=True"
    )

    def adaptation(self):
        if not self.final_only:
            return training.Adaptation(epochs=self.fine_tune_epochs)
        return training.Adaptation(
            self.fine_tune_epochs,
            when="last",
            joint_epochs=True,
            proximal_weight=self.fine_tune_proximal_weight,
        )
