"""Hold-outs and caps of clients' samples, in proportion from every stratum."""

import numpy as np

from fedjax_pfl.data.partitions.dealing import Strata, apportion, joined
from fedjax_pfl.utils.errors import InputError


def held_out(fraction: float, size: int) -> int:
    """Return the number nearest to `fraction * size` that leaves at least one of `size` samples."""
    return max(min(int(fraction * size + 0.5), size - 1), 0)


def hold_out(clients: list[Strata], fraction: float) -> tuple[list[Strata], list[Strata]]:
    """Return every client's held-out samples, in proportion from its strata, and the others.

    A stratum keeps a sample for training unless there are too few samples.
    """
    first, others = [], []
    for client, strata in enumerate(clients):
        sizes = np.array([len(stratum) for stratum in strata], np.int64)
        total = held_out(fraction, int(sizes.sum()))
        # Ties between strata are broken in another order for each client.
        turn = np.roll(np.arange(len(sizes)), -client)
        parts = np.empty_like(sizes)
        parts[turn] = apportion(total, sizes[turn])
        for k in np.flatnonzero((parts == sizes) & (sizes > 0)):
            most = np.argmax(sizes - parts)
            if sizes[most] - parts[most] > 1:
                parts[[k, most]] += -1, 1
        first.append([x[:n] for x, n in zip(strata, parts, strict=True)])
        others.append([x[n:] for x, n in zip(strata, parts, strict=True)])
    return first, others


def nothing_held_out(fraction: float, largest: int) -> InputError:
    """Return the error for a fraction that is too small for the `largest` client."""
    what = f"test_fraction={fraction} leaves no test sample to any client: "
    if largest < 2:
        return InputError(f"{what}none holds a second sample. Take fewer clients.")
    enough = -(-500 // largest) / 1000  # half a sample, rounded up
    return InputError(
        f"{what}the largest holds {largest} samples. Take fewer clients, or a test_fraction of "
        f"{enough:g} or more."
    )


def capped(clients: list[Strata], cap: int | None, exactly: bool, name: str) -> list[np.ndarray]:
    """Return an ascending list per client, of at most `cap` samples from all its strata."""
    lists = []
    for strata in clients:
        sizes = [len(stratum) for stratum in strata]
        if cap is not None:
            if exactly and sum(sizes) < cap:
                raise InputError(f"{name} must be at most {sum(sizes)} here, got {cap}.")
            sizes = apportion(min(cap, sum(sizes)), sizes)
        lists.append(np.sort(joined([x[:n] for x, n in zip(strata, sizes, strict=True)])))
    return lists
