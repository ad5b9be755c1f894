"""FedProx with fine-tuning at evaluation (Li et al., MLSys 2020; Wang et al., 2019)."""

from tests.references import fedavg_ft, fedprox


def run(initial, clients, rounds, *, proximal_weight, **options):
    """Trains as FedProx does; fine-tuned copies are scored and thrown away.

    The proximal term belongs to the training: copies fine-tune only on the loss unless
    `tuning_proximal_weight` holds them too.

    Args:
      initial, clients, rounds, proximal_weight: as in `fedprox.run`.
      **options: as in `fedavg_ft.run`: tuning_batches, tuning_rate, tuning_proximal_weight, and
        what training takes.

    Returns:
      After every round, {"global": model} and, where asked for, "personalized": [N models].
    """
    return fedavg_ft.run(
        initial, clients, rounds, train=fedprox.run, proximal_weight=proximal_weight, **options
    )
