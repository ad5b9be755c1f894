"""Input scalings: samples are stored unscaled, and the model sees `x * scale + shift`."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fedjax_pfl.data.dataset import Dataset
from fedjax_pfl.data.partitions.partition import Partition
from fedjax_pfl.data.partitions.ragged import Ragged
from fedjax_pfl.utils.conversions import as_array
from fedjax_pfl.utils.errors import InputError, find_name, require

SCALINGS: dict[str, str] = {
    "default": "the data set's own (half for images, standard for tables, raw for token ids)",
    "half": "(x/255 - 0.5) / 0.5: bytes to -1..1 (PFLlib, cwFedAVG)",
    "unit": "x/255: bytes to 0..1",
    "digits": "x/16: scikit-learn's digits to 0..1",
    "raw": "x as it is (PLGA); the only one for token ids",
    "standard": "mean 0 and deviation 1 per channel, over all clients' training samples",
    "standard_by_client": "the same, over each client's own training samples",
    "mnist": "(x/255 - 0.1307) / 0.3081: SPFL on MNIST and EMNIST",
    "cifar": "x/255 by mean 0.4914 0.4822 0.4465, deviation 0.247 0.243 0.261: SPFL on CIFAR",
    "feddwa_cifar": "the same mean, deviation 0.2023 0.1994 0.2010: FedDWA on CIFAR",
}

_FIXED = {
    "half": (1 / 127.5, -1.0),
    "unit": (1 / 255, 0.0),
    "digits": (1 / 16, 0.0),
    "raw": (1.0, 0.0),
}
# Mean and deviation per channel of x/255, from the papers' codes.
_MOMENTS = {
    "mnist": ((0.1307,), (0.3081,)),
    "cifar": ((0.4914, 0.4822, 0.4465), (0.247, 0.243, 0.261)),
    "feddwa_cifar": ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)),
}
BYTES = frozenset({"half", "unit", *_MOMENTS})  # scalings of 0..255
SHARED, OWN = "standard", "standard_by_client"
FITTED = (SHARED, OWN)  # scalings by statistics of training samples
_BLOCK = 1024  # samples that are converted to float64 at once


def resolved_scaling(name: Any, dataset: Dataset) -> Any:
    """Return the scaling that a name stands for, which differs for `default` only."""
    return dataset.input_scaling if isinstance(name, str) and name == "default" else name


def input_scaling(
    name: str | Sequence[Any], dataset: Dataset, partition: Partition | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Return scale and shift of a scaling: a model's input is `x * scale + shift`.

    Args:
      name: one of `SCALINGS`; or a pair (mean, deviation) of known constants, each one number or
        one for each channel, for (x - mean) / deviation.
      dataset: the data set, for its `default`.
      partition: for `FITTED` scalings, which are fitted to its clients' training samples, and to
        no others. None takes the official training samples.

    Returns:
      scale and shift, float32, [1] or [size of a sample's last axis]; with `standard_by_client`
      and a partition [N, size of the last axis].

    Raises:
      InputError: unknown name, token ids (`vocab_size`) with another scaling than `raw`, samples
        in -1..1 with one that divides by 255, or constants that don't fit the samples.
    """
    allowed = "a Partition, such as make_partition gives, or None"
    good = partition is None or isinstance(partition, Partition)
    require(good, "partition", type(partition).__name__, allowed)
    given = resolved_scaling(name, dataset)
    if isinstance(given, Sequence) and not isinstance(given, str) and len(given) == 2:
        return _constants(given, dataset)
    name = find_name("input scaling", given, SCALINGS)
    if dataset.vocab_size is not None and name != "raw":
        raise InputError(
            f"Samples of data set {dataset.name!r} are token ids, which are never scaled: "
            f"input_scaling must be 'default' or 'raw', got {name!r}."
        )
    if name in FITTED:
        if partition is None:
            return standard(dataset.samples, np.arange(dataset.num_train))
        return fitted(name, dataset.samples, partition.train)
    if name in BYTES and _is_scaled(dataset.train_x):
        raise InputError(
            f"Samples of data set {dataset.name!r} are in -1..1, and input scaling {name!r} would "
            "divide them by 255 once more: use 'raw' or 'standard'."
        )
    if name in _MOMENTS:
        mean, deviation = (np.array(values) for values in _MOMENTS[name])
        channels = dataset.input_shape[-1]
        fits = len(mean) in (1, channels)
        require(fits, f"Channels for input scaling {name!r}", channels, f"{len(mean)}")
        scale = 1 / (255 * deviation)
        return scale.astype(np.float32), (-mean / deviation).astype(np.float32)
    scale, shift = _FIXED[name]
    return np.array([scale], np.float32), np.array([shift], np.float32)


def _constants(pair: Sequence[Any], dataset: Dataset) -> tuple[np.ndarray, np.ndarray]:
    require(dataset.vocab_size is None, "input_scaling of token ids", pair, "'default' or 'raw'")
    mean, deviation = (np.atleast_1d(as_array(values)) for values in pair)
    for what, values in (("Mean", mean), ("Deviation", deviation)):
        fits = values.dtype.kind in "iuf" and values.shape in ((1,), dataset.input_shape[-1:])
        fits = fits and np.isfinite(values).all() and (what == "Mean" or (values > 0).all())
        kind = "finite" if what == "Mean" else "positive"
        allowed = f"1 or {dataset.input_shape[-1]} {kind} numbers"
        require(fits, f"{what} of input_scaling", values, allowed)
    return (1 / deviation).astype(np.float32), (-mean / deviation).astype(np.float32)


def _is_scaled(x: np.ndarray) -> bool:
    """Return whether samples are fractions in -1..1; integers may be bytes of dark images."""
    if x.dtype.kind != "f":
        return False
    blocks = [x[start : start + 1024] for start in range(0, len(x), 1024)]
    within = all(np.abs(block).max(initial=0) <= 1 for block in blocks)
    return within and any((block != np.trunc(block)).any() for block in blocks)


def fitted(
    name: str, samples: Callable[[np.ndarray], np.ndarray], train: Ragged
) -> tuple[np.ndarray, np.ndarray]:
    """Return scale and shift of a scaling in `FITTED`, fitted to clients' training samples.

    Args:
      name: the scaling.
      samples: returns the samples [k, ...] at pool indices [k].
      train: each client's training samples. A sample of several clients counts once; a client
        without samples is scaled as all clients together.
    """
    together = standard(samples, np.unique(train.idx))
    if name == SHARED:
        return together
    each = [standard(samples, rows) if len(rows) else together for rows in train.lists()]
    scale, shift = (np.stack(values) for values in zip(*each, strict=True))
    return scale, shift


def check_stored(samples: np.ndarray, stored: np.dtype, fractions: bool = False) -> None:
    """Check samples [n, ...] that are to be scaled as a data set's of a type.

    Args:
      samples: numbers.
      stored: type of the data set's samples.
      fractions: whether the data set's samples are images in -1..1.

    Raises:
      InputError: a value that is not finite; for a data set of bytes, values that are no bytes, or
        are scaled already; for one of fractions, larger values.
    """
    if samples.dtype.kind == "f":
        bad = int(np.count_nonzero(~np.isfinite(samples)))
        require(bad == 0, "Samples", f"{bad} NaN or infinite values", "finite")
    if fractions and samples.size and (high := float(np.abs(samples.astype(float)).max())) > 1:
        raise InputError(
            f"Samples must be in -1..1, as the data set stores them, got values up to {high:g}."
        )
    if stored != np.uint8 or samples.dtype == np.uint8 or not samples.size:
        return
    low, high = float(samples.min()), float(samples.max())
    whole = samples.dtype.kind != "f" or bool((samples == np.trunc(samples)).all())
    scaled = samples.dtype.kind == "f" and 0 < high <= 1
    if low < 0 or high > 255 or not whole or scaled:
        raise InputError(
            f"Samples must be whole numbers in 0..255, as the data set stores them, got "
            f"{samples.dtype} in {low:g}..{high:g}: they are scaled here."
        )


def standard(
    samples: Callable[[np.ndarray], np.ndarray], rows: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return scale and shift that give the samples at `rows` mean 0 and deviation 1."""
    # Two passes in float64 over blocks: exact enough for any offset, without a float64 copy.
    parts = [rows[start : start + _BLOCK] for start in range(0, len(rows), _BLOCK)]
    axes = tuple(range(samples(rows[:1]).ndim - 1))

    count = len(rows) * math.prod(samples(rows[:1]).shape[1:-1])
    mean = sum(samples(part).sum(axes, dtype=np.float64) for part in parts) / count
    variance = sum(((samples(part) - mean) ** 2).sum(axes) for part in parts) / count
    deviation = np.sqrt(variance)
    # A constant channel (a corner pixel of [n, d] data) becomes 0 instead of 0/0.
    scale = 1 / np.where(deviation > np.maximum(1e-6 * np.abs(mean), 1e-30), deviation, 1.0)
    return scale.astype(np.float32), (-mean * scale).astype(np.float32)
