"""Federated Learning with Personalization Layers.

Manoj Ghuhan Arivazhagan, Vinay Aggarwal, Aaditya Kumar Singh, Sunav Choudhary. 2019.
https://arxiv.org/abs/1912.00818
"""

from typing import Literal

from fedjax_pfl import core
from fedjax_pfl.algorithms.fedavg import Weighted


class PartlyShared(Weighted):
    """FedAvg of a subset of the layers, which subclasses choose."""

    def check_layers(self, name, federation):
        """Raise `InputError` unless the network has as many layers as the field `name` asks for."""
        layers = federation.plan.layers
        names = ", ".join(layer[0] for layer in layers)
        allowed = f"in 0..{len(layers)}, the layers of the network ({names})"
        core.require(0 <= getattr(self, name) <= len(layers), name, getattr(self, name), allowed)


@core.algorithm("fedper")
class FedPer(PartlyShared):
    """FedPer: w_B <- sum_i p_i LocalSGD(w_B, w_Pi)_B; the last layers w_Pi are private.

    Base and personalization layers are trained together, in one pass over the samples.

    Attributes:
      personal_layers: K_P, the number of private layers, counted from the head; a residual block
        counts as one. 0 is FedAvg.
      weighting: p_i by "size" (the paper), or "uniform".
    """

    personal_layers: int = core.static(default=1, allowed="at least 0")
    weighting: Literal["size", "uniform"] = core.static(default="size")

    def sharing(self):
        return core.SharedLayers(last=self.personal_layers, others=True)

    def check(self, federation):
        super().check(federation)
        self.check_layers("personal_layers", federation)
