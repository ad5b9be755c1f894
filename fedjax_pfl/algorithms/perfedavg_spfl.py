"""Personalized Heterogeneous FL with Gradient Similarity: Per-FedAvg beside SPFL, in Table 1.

Anonymous authors, submitted to ICLR 2022. https://openreview.net/forum?id=c4iTLTkpY5

The paper credits the row to
Alireza Fallah, Aryan Mokhtari, Asuman Ozdaglar: Personalized Federated Learning with Theoretical
Guarantees: A Model-Agnostic Meta-Learning Approach. NeurIPS 2020. https://arxiv.org/abs/2002.07948
"""

from fedjax_pfl import core
from fedjax_pfl.algorithms.fedavg import FedAvg


@core.algorithm("perfedavg_spfl")
class PerFedAvgSpfl(FedAvg):
    """Per-FedAvg of SPFL's Tables 1 and 2: FedAvg with two SGD steps on each minibatch.

    It differs from the Per-FedAvg of Fallah et al., whose second gradient is taken on another
    minibatch and applied to the model before the first step.

    Attributes:
      local_updates: steps on each minibatch, each with its own gradient; 1 is FedAvg.
    """

    local_updates: int = core.static(default=2, allowed="in [1, 10]")

    def local_update(self, ctx, state, received):
        steps = self.local_updates
        return super().local_update(ctx, state, received, updates_per_batch=steps)
