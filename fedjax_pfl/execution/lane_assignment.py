"""Assignment of clients to lanes and devices of about equal work."""

import heapq
from dataclasses import replace

import numpy as np

from fedjax_pfl.execution.strategy import Execution

UNEVEN = 1.15  # from this ratio of the busiest device's work to the mean, clients change devices
FULL = 0.85  # least padding efficiency for lanes of ragged clients


def assign_lanes(execution: Execution, steps: np.ndarray) -> Execution:
    """Choose `fill` and `deal` of an execution for clients of known work.

    The number of lanes is the largest with a padding efficiency of at least `FULL`. Clients change
    devices, which copies their models twice, only if some device would otherwise have more than
    `UNEVEN` times the mean work.

    Args:
      execution: the user's choice.
      steps: int [N], local steps of each client of a round in which all take part.
    """
    steps = np.asarray(steps)
    share = -(-len(steps) // execution.devices)
    work = np.add.reduceat(steps, np.arange(0, len(steps), share))
    even = bool(work.max() <= UNEVEN * share * steps.mean())
    ragged = execution.max_lanes == 0 and steps.any() and steps.min() < steps.max()
    fill = _widest(steps) / len(steps) if ragged else execution.fill
    return replace(execution, deal=not even, fill=fill)


def _widest(steps: np.ndarray) -> int:
    """Return the largest number of lanes with a padding efficiency of at least `FULL`."""
    least, most = 1, min(len(steps), int(steps.sum() / (FULL * steps.max())))
    while least < most:  # bisection
        width = (least + most + 1) // 2
        full = steps.sum() >= FULL * width * makespan(steps, width)
        least, most = (width, most) if full else (least, width - 1)
    return max(least, 1)


def ranks_of_devices(count: int, devices: int) -> np.ndarray:
    """Return the ranks [share, devices] of each device's rows; the longest row has rank 0.

    Ranks go back and forth over the devices, so that their totals are close. Slots that are left
    over repeat the last row; they take no longer than the other devices' slots.
    """
    share = -(-count // devices)
    ranks = np.minimum(np.arange(share * devices), count - 1).reshape(share, devices)
    return np.where(np.arange(share)[:, None] % 2 == 0, ranks, ranks[:, ::-1])


def makespan(steps: np.ndarray, lanes: int) -> int:
    """Return the steps until the last lane ends, if each takes the longest waiting client."""
    totals = [0] * min(lanes, len(steps))
    for length in sorted(map(int, steps), reverse=True):
        heapq.heapreplace(totals, totals[0] + length)
    return max(totals)


def padding_efficiency(steps: np.ndarray, execution: Execution) -> float:
    """Return true local steps over executed steps in a round of all clients.

    Args:
      steps: int [N], local steps of each client: `federation.steps()`.
      execution: how the client axis is run: `federation.execution`.
    """
    steps = np.asarray(steps)
    lanes = execution.lanes(len(steps))
    dealt = ranks_of_devices(len(steps), execution.devices).T
    ranked = np.sort(steps)[::-1]
    shares = [ranked[np.unique(ranks)] for ranks in dealt]
    if not execution.deal:
        shares = np.split(steps, range(len(dealt[0]), len(steps), len(dealt[0])))
    executed = 0
    for share in shares:
        executed += share.sum() if lanes == 1 else lanes * makespan(share, lanes)
    return float(steps.sum() / executed) if executed else 1.0
