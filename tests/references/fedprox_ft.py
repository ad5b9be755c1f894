"""FedProx with fine-tuning at evaluation (Li et al., MLSys 2020; Wang et al., 2019)."""

from tests.references import fedavg_ft, fedprox


def run(initial, clients, rounds, *, mu, **options):
    """Trains as FedProx does; fine-tuned copies are scored and thrown away.

    The proximal term belongs to the training: copies fine-tune only on the loss unless
    `tuning_pull` holds them too.

    Args:
      initial, clients, rounds, mu: as in `fedprox.run`.
      **options: as in `fedavg_ft.run`: tuning_batches, tuning_rate, tuning_pull, and what
        training takes.

    Returns:
      After every round, {"global": model} and, where asked for, "personalized": [N models].
    """
    return fedavg_ft.run(initial, clients, rounds, train=fedprox.run, proximal_weight=mu, **options)
