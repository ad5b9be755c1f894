"""FedProx with fine-tuning at evaluation (Li et al., MLSys 2020; Wang et al., 2019)."""

from tests.references import fedavg_ft, fedprox


def run(s, *, proximal_weight, **options):
    """Trains as FedProx does; fine-tuned copies are scored and thrown away.

    The proximal term belongs to the training: copies fine-tune only on the loss unless
    `tuning_proximal_weight` holds them too.

    Args:
      proximal_weight: as in `fedprox.run`.
      **options: as in `fedavg_ft.run`.

    Returns:
      After every round, {"global": model} and, where asked for, "personalized": [N models].
    """
    return fedavg_ft.run(s, train=fedprox.run, proximal_weight=proximal_weight, **options)
