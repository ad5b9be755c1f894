"""Federated Optimization in Heterogeneous Networks.

Tian Li, Anit Kumar Sahu, Manzil Zaheer, Maziar Sanjabi, Ameet Talwalkar, Virginia Smith.
MLSys 2020. https://arxiv.org/abs/1812.06127
"""

from fedjax_pfl.algorithms.fedavg import FedAvg
from fedjax_pfl.contract.registry import algorithm
from fedjax_pfl.errors import require
from fedjax_pfl.federation.extra_losses import proximal


@algorithm("fedprox")
class FedProx(FedAvg):
    """FedAvg whose clients stay near the server's model: f_i(y) + (mu / 2) |y - w|^2.

    The term applies to shared parameters only.

    Attributes:
      mu: 1 is the best of .01, .1, 1, 10 in FedDWA's runs, and of .001, .01, .1, 1 for three of the
        five data sets of Li et al., .001 and .01 for the others.
    """

    mu: float = 1.0

    def validate(self):
        super().validate()
        require(self.mu >= 0, "mu", self.mu, "at least 0")

    def local_update(self, ctx, state, received, **options):
        pull, server = proximal(self.mu), state.server["params"]
        return super().local_update(
            ctx, state, received, extra_loss=pull, broadcast=server, **options
        )
