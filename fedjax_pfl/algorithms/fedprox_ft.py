"""FedProx with fine-tuning, from two papers.

Federated Optimization in Heterogeneous Networks.

Tian Li, Anit Kumar Sahu, Manzil Zaheer, Maziar Sanjabi, Ameet Talwalkar, Virginia Smith.
MLSys 2020. https://arxiv.org/abs/1812.06127

Federated Evaluation of On-device Personalization.

Kangkang Wang, Rajiv Mathews, Chloé Kiddon, Hubert Eichner, Françoise Beaufays, Daniel Ramage. 2019.
https://arxiv.org/abs/1910.10252
"""

from fedjax_pfl import core
from fedjax_pfl.algorithms.fedavg_ft import FedAvgFineTuned
from fedjax_pfl.algorithms.fedprox import FedProx


@core.algorithm("fedprox_ft")
class FedProxFineTuned(FedAvgFineTuned, FedProx):
    """FedProx whose clients fine-tune a copy of the global model before they use it.

    The proximal term applies to training only, unless `fine_tune_proximal_weight` adds one to
    fine-tuning. The copies are discarded after evaluation.

    Attributes:
      proximal_weight, slow_fraction: of training, as in FedProx.
      fine_tune_epochs, final_only, fine_tune_proximal_weight: of the copies, as in FedAvg with
        fine-tuning.
    """
