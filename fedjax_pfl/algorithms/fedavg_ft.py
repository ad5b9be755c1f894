"""Federated Evaluation of On-device Personalization.

Kangkang Wang, Rajiv Mathews, Chloé Kiddon, Hubert Eichner, Françoise Beaufays, Daniel Ramage. 2019.
https://arxiv.org/abs/1910.10252
"""

from fedjax_pfl.algorithms.fedavg import FedAvg
from fedjax_pfl.contract.registry import algorithm
from fedjax_pfl.errors import require
from fedjax_pfl.federation.adaptation import Adaptation
from fedjax_pfl.structs import static


@algorithm("fedavg_ft")
class FedAvgFineTuned(FedAvg):
    """FedAvg whose clients fine-tune a copy of the global model before they use it.

    Training is FedAvg's; the copies are discarded after evaluation. The papers do not state the
    number of epochs: one, at the round's learning rate.
    """

    fine_tune_epochs: int = static(default=1)

    def validate(self):
        require(self.fine_tune_epochs >= 0, "fine_tune_epochs", self.fine_tune_epochs, "at least 0")

    def adaptation(self):
        return Adaptation(epochs=self.fine_tune_epochs)
