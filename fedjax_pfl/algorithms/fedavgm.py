"""Measuring the Effects of Non-Identical Data Distribution for Federated Visual Classification.

Tzu-Ming Harry Hsu, Hang Qi, Matthew Brown. 2019. https://arxiv.org/abs/1909.06335
"""

import optax

from fedjax_pfl import core
from fedjax_pfl.algorithms.fedavg import FedAvg


@core.algorithm("fedavgm")
class FedAvgM(FedAvg):
    """FedAvg with momentum on the server: v <- beta v + (w - sum_i p_i w_i), w <- w - eta_s v.

    Only parameters have momentum; running statistics of normalization layers are averaged. A round
    without uploads leaves w and v unchanged.

    Attributes:
      server_momentum: beta. The paper tries 0, 0.7, 0.9, 0.97, 0.99 and 0.997; FL-bench uses 0.9
        with Nesterov momentum, FedOpt's authors 0.9 without, FedDWA's comparison 0.1.
      nesterov: w <- w - eta_s (w - sum_i p_i w_i + beta v).
      server_rate: eta_s.
    """

    server_momentum: float = core.number(default=0.9, allowed="in [0, 1)")
    nesterov: bool = core.static(default=True)
    server_rate: float = core.number(default=1.0, allowed="above 0")

    def server_optimizer(self):
        return optax.sgd(self.server_rate, self.server_momentum, self.nesterov)
