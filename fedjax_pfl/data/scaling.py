"""Input scalings: samples are stored unscaled, and the model sees `x * scale + shift`."""

import numpy as np

from fedjax_pfl.data.dataset import Dataset
from fedjax_pfl.utils.errors import InputError, require, require_name

SCALINGS: dict[str, str] = {
    "default": "the data set's own (half for images, standard for tables, raw for token ids)",
    "half": "(x/255 - 0.5) / 0.5: bytes to -1..1 (PFLlib, cwFedAVG)",
    "unit": "x/255: bytes to 0..1",
    "digits": "x/16: scikit-learn's digits to 0..1",
    "raw": "x as it is (PLGA); the only one for token ids",
    "standard": "mean 0 and deviation 1 per channel, over the training samples",
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


def input_scaling(name: str, dataset: Dataset) -> tuple[np.ndarray, np.ndarray]:
    """Return scale and shift of a named scaling: a model's input is `x * scale + shift`.

    Args:
      name: one of `SCALINGS`.
      dataset: the data set, for its `default` and, for `standard`, its training samples.

    Returns:
      scale and shift, float32, [1] or [size of a sample's last axis].

    Raises:
      InputError: unknown name, token ids (`vocab_size`) with another scaling than `raw`, or samples
        in -1..1 with one that divides by 255.
    """
    if isinstance(name, str) and name == "default":
        name = dataset.input_scaling
    require_name("input scaling", name, SCALINGS)
    if dataset.vocab_size is not None and name != "raw":
        raise InputError(
            f"Samples of data set {dataset.name!r} are token ids, which are never scaled: "
            f"input_scaling must be 'default' or 'raw', got {name!r}."
        )
    if name == "standard":
        return _standard(dataset.train_x)
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


def _is_scaled(x: np.ndarray) -> bool:
    """Return whether samples are fractions in -1..1; integers may be bytes of dark images."""
    if x.dtype.kind != "f":
        return False
    blocks = [x[start : start + 1024] for start in range(0, len(x), 1024)]
    within = all(np.abs(block).max(initial=0) <= 1 for block in blocks)
    return within and any((block != np.trunc(block)).any() for block in blocks)


def _standard(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    # Two passes in float64 over blocks: exact enough for any offset, without a float64 copy of x.
    blocks = [x[start : start + 1024] for start in range(0, len(x), 1024)]
    count = x.size // x.shape[-1]
    axes = tuple(range(x.ndim - 1))
    mean = sum(block.sum(axes, dtype=np.float64) for block in blocks) / count
    deviation = np.sqrt(sum(((block - mean) ** 2).sum(axes) for block in blocks) / count)
    # A constant channel (a corner pixel of [n, d] data) becomes 0 instead of 0/0.
    scale = 1 / np.where(deviation > np.maximum(1e-6 * np.abs(mean), 1e-30), deviation, 1.0)
    return scale.astype(np.float32), (-mean * scale).astype(np.float32)
