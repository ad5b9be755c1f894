"""FedEx-LoRA: Exact Aggregation for Federated and Efficient Fine-Tuning of Foundation Models.

Raghav Singhal, Kaustubh Ponkshe, Praneeth Vepakomma. ACL 2025. https://arxiv.org/abs/2410.09432
"""

from typing import Literal

from fedjax_pfl import core
from fedjax_pfl.aggregation import products
from fedjax_pfl.algorithms.common.merged_adapters import MergedAdapters, summed_products
from fedjax_pfl.algorithms.fedavg import Weighted


@core.algorithm("fedex_lora")
class FedExLoRA(MergedAdapters, Weighted):
    """FedEx-LoRA: FedAvg of both factors; the server adds to W what that average lacks.

    W <- W + s (sum_i p_i A_i B_i - A B), with the averages A and B. The network after the round is
    therefore that of the mean of the clients' products.

    Attributes:
      weighting: "uniform" (the paper and its code), or by "size".
    """

    weighting: Literal["size", "uniform"] = core.static(default="uniform")

    def added(self, a, b, weights):
        mean_a, mean_b = (products.rows(weights.astype(x.dtype), x) for x in (a, b))
        return summed_products(a, b, weights) - products.matmul(mean_a, mean_b)
