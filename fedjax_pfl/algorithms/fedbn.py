"""FedBN: Federated Learning on Non-IID Features via Local Batch Normalization.

Xiaoxiao Li, Meirui Jiang, Xiaofei Zhang, Michael Kamp, Qi Dou. ICLR 2021.
https://arxiv.org/abs/2102.07623
"""

from typing import Literal

from fedjax_pfl import core
from fedjax_pfl.algorithms.fedper import PartlyShared


@core.algorithm("fedbn")
class FedBN(PartlyShared):
    """FedBN: FedAvg of all layers except batch normalization, which stays with the client.

    Scale, bias and running statistics are private. Batch-norm layers are recognized by their
    running statistics, not by their names.

    Attributes:
      weighting: "uniform" over the members (the paper), or by "size".
    """

    batch_norm = "local"

    weighting: Literal["size", "uniform"] = core.static(default="uniform")

    def check(self, federation):
        super().check(federation)
        if not federation.plan.normalized:
            raise core.InputError(
                "fedbn keeps batch-norm layers with their clients, and this network has none: it "
                f"would be fedavg{', with equal weights' * (self.weighting == 'uniform')}."
            )

    def remarks(self, federation):
        policy = federation.plan.batch_norm
        overridden = [f"batch-norm is {policy}, as set by batch_norm"] * (policy != self.batch_norm)
        return [*super().remarks(federation), *overridden]
