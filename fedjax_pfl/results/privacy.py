"""The privacy that a result's clients spent, from recorded local steps or participation."""

from typing import Any, NamedTuple

import numpy as np

from fedjax_pfl.results.result_scores import ResultScores
from fedjax_pfl.uploads import accounting


class Guarantee(NamedTuple):
    """A guarantee of differential privacy.

    Attributes:
      unit: what is added or removed: "sample" or "client".
      epsilon: of the client that spent most, over all seeds; infinite without noise.
      delta: at which.
      sampling: what the accounting assumes of minibatches or cohorts.
    """

    unit: str
    epsilon: float
    delta: float
    sampling: str

    def __str__(self) -> str:
        return (
            f"{self.unit}-level differential privacy with epsilon {self.epsilon:.3g} at delta "
            f"{self.delta:g}, {self.sampling}"
        )


def epsilons(result: ResultScores, setting: int = 0) -> np.ndarray:
    """Return the epsilon of each client in each run of one setting, [S, N].

    Scores and losses are diagnostics and are not counted. At the level of samples, personalized
    models count as published, with one adaptation of the final one; at that of clients, it is what
    leaves clients that counts.

    Raises:
      InputError: dp-accounting is not installed.
    """
    dp = result.privacy
    assert dp is not None
    if dp["unit"] == "client":
        return _of_clients(result, dp, setting)
    steps = result.clients["local_steps"][:, setting].astype(np.int64).sum(axis=1)
    noise = np.broadcast_to(dp["noise"][setting], steps.shape[1:])
    cost = {}  # clients with as many samples and steps spend the same
    for client, z in enumerate(noise.tolist()):
        for count in set(steps[:, client].tolist()):
            made = accounting.training_releases(dp, z, client, count)
            cost[client, count] = accounting.epsilon(made, dp["delta"])
    return np.array([[cost[i, n] for i, n in enumerate(run)] for run in steps.tolist()])


def _of_clients(result: ResultScores, dp: dict[str, Any], setting: int) -> np.ndarray:
    took_part = result.clients["participated"][:, setting].astype(np.int64)
    counts = took_part.sum(axis=1)
    counts = counts if dp["local"] else np.full_like(counts, took_part.shape[1])
    noise = dp["noise"][setting]
    cost = {
        n: accounting.epsilon(accounting.upload_releases(dp, noise, n), dp["delta"])
        for n in set(counts.ravel().tolist())
    }
    return np.vectorize(cost.get, otypes=[float])(counts)


def guarantee(result: ResultScores, setting: int = 0) -> Guarantee:
    """Return the guarantee of one setting of a result with differential privacy."""
    dp = result.privacy
    assert dp is not None
    most = float(epsilons(result, setting).max())
    return Guarantee(dp["unit"], most, dp["delta"], dp["sampling"])


def remarks(result: ResultScores, setting: int = 0) -> list[str]:
    """Return the guarantee as a sentence on a row of a table; [] without differential privacy.

    A second sentence follows where delta is not below 1/n, with n samples of the smallest client or
    n clients: such a guarantee allows to publish one of them.
    """
    dp = result.privacy
    if dp is None:
        return []
    notes = [str(guarantee(result, setting))]
    if dp["unit"] == "client":
        count, what = result.clients["participated"].shape[-1], "of the number of clients"
    else:
        count = min((n for n in dp["sizes"] if n), default=0)
        what = "of the smallest client's number of samples"
    if dp["delta"] * count >= 1:
        notes.append(f"delta {dp['delta']:g} is not below 1/{count}, the inverse {what}")
    return notes
