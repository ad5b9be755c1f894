"""Client-level differential privacy of a simulation: its releases, and noise for an epsilon.

With noise on every upload ("local") each upload of a client is a release to whoever sees it, so a
client spends only what the rounds in which it takes part cost. With noise shared by the members
("distributed") a round's sum is the release, and sampling amplifies privacy.
"""

from typing import Any

import numpy as np

from fedjax_pfl.core.interface import Algorithm
from fedjax_pfl.federation.federation import Federation
from fedjax_pfl.uploads.accounting import noise_for

LOCAL = "noise on every upload"
POISSON, FIXED = "Poisson cohorts", "cohorts of a fixed size accounted as Poisson sampling"


def client_releases(algorithm: Algorithm, federation: Federation) -> dict[str, Any]:
    """Return what a round releases, as plain values that a result keeps.

    Returns:
      per_round: uploads of a member in a round.
      rate: probability that a client is in a release.
      local: whether a client pays only for the rounds in which it takes part.
      sampling: the assumption of the accounting, in words.
    """
    stage, part = federation.uploads, federation.participation
    local = not (stage is not None and stage.noise_of_sums)
    rate, words = 1.0, LOCAL
    if not local and part.sampled(federation.num_clients):
        rate = part.cohort_size / federation.num_clients if part.poisson is None else part.poisson
        words = FIXED if part.poisson is None else POISSON
    elif not local:
        words = "all clients in every round"
    local = local and algorithm.absent_idle  # else absent clients upload something too
    per_round = algorithm.uploads_per_round
    return {"per_round": per_round, "rate": float(rate), "local": local, "sampling": words}


def client_noise_within(
    epsilon: float, algorithm: Algorithm, *, federation: Federation, rounds: int
) -> np.ndarray:
    """Return the noise multiplier that keeps a client in every round within `epsilon`.

    Raises:
      InputError: no noise is large enough, or dp-accounting is not installed.
    """
    plan = client_releases(algorithm, federation)
    privacy = federation.privacy
    assert privacy is not None
    noise = noise_for(epsilon, privacy.delta, rounds * plan["per_round"], plan["rate"])
    return np.nextafter(np.asarray(noise, federation.task.dtype), np.inf)
