"""Think Locally, Act Globally: Federated Learning with Local and Global Representations.

Paul Pu Liang, Terrance Liu, Liu Ziyin, Nicholas B. Allen, Randy P. Auerbach, David Brent, Ruslan
Salakhutdinov, Louis-Philippe Morency. 2020. https://arxiv.org/abs/2001.01523
"""

from typing import Literal

from fedjax_pfl.aggregation.sharing import SharedLayers
from fedjax_pfl.algorithms.fedper import PartlyShared
from fedjax_pfl.contract.registry import algorithm
from fedjax_pfl.errors import require
from fedjax_pfl.structs import static


@algorithm("lg_fedavg")
class LgFedAvg(PartlyShared):
    """LG-FedAvg: w_G <- mean of LocalSGD(w_Li, w_G)_G; the representation w_Li stays local.

    The complement of FedPer. All layers are trained in every round.

    Attributes:
      global_layers: how many layers are averaged; 0 is local training.
      global_end: "last", the layers next to the output (the paper); or "first", those next to the
        input (the published code on CIFAR-10, with both convolutions).
      weighting: "uniform" over the members (the published code), or by "size".
    """

    global_layers: int = static(default=1)
    global_end: Literal["last", "first"] = static(default="last")
    weighting: Literal["size", "uniform"] = static(default="uniform")

    def sharing(self):
        if self.global_end == "first":
            return SharedLayers(first=self.global_layers)
        return SharedLayers(last=self.global_layers)

    def validate(self):
        require(self.global_layers >= 0, "global_layers", self.global_layers, "at least 0")

    def check(self, federation):
        super().check(federation)
        self.check_layers("global_layers", federation)
