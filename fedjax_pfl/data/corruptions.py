"""Corruptions of images: ten kinds with five strengths.

Kinds and strengths are those of CIFAR-10-C: Dan Hendrycks, Thomas Dietterich: Benchmarking Neural
Network Robustness to Common Corruptions and Perturbations, ICLR 2019,
https://arxiv.org/abs/1903.12261 (the numbers are those of make_cifar_c.py in
https://github.com/hendrycks/robustness). The ten are pFedFDA's (NeurIPS 2024), with `pixelate` in
place of `frost`, which needs photographs. Fog is a sum of octaves instead of a diamond-square
fractal, brightness is added to the channels instead of the value of HSV, and motion is a line of
whole pixels.

The random numbers of a sample depend on its index in the pool only, so that they do not change
with the client that holds it.
"""

import io
from collections.abc import Callable, Sequence

import numpy as np

STREAM = 1903  # part of the seeds, so that other draws for the same sample differ
Generators = Sequence[np.random.Generator]
# change(images [n, h, w, c] in 0..1, strength 1..5, a generator for each image) -> images
Change = Callable[[np.ndarray, int, Generators], np.ndarray]


def _drawn(rngs: Generators, draw: Callable[[np.random.Generator], np.ndarray]) -> np.ndarray:
    return np.stack([draw(rng) for rng in rngs]) if len(rngs) else np.zeros(0)


def gaussian_noise(x: np.ndarray, strength: int, rngs: Generators) -> np.ndarray:
    scale = (0.04, 0.06, 0.08, 0.09, 0.10)[strength - 1]
    return x + scale * _drawn(rngs, lambda rng: rng.standard_normal(x.shape[1:]))


def shot_noise(x: np.ndarray, strength: int, rngs: Generators) -> np.ndarray:
    photons = (500, 250, 100, 75, 50)[strength - 1]
    counts = [rng.poisson(one * photons) for rng, one in zip(rngs, x, strict=True)]
    return np.stack(counts) / photons


def impulse_noise(x: np.ndarray, strength: int, rngs: Generators) -> np.ndarray:
    share = (0.01, 0.02, 0.03, 0.05, 0.07)[strength - 1]
    lots = _drawn(rngs, lambda rng: rng.random(x.shape[1:]))
    return np.where(lots < share / 2, 0, np.where(lots > 1 - share / 2, 1, x))


def defocus_blur(x: np.ndarray, strength: int, rngs: Generators) -> np.ndarray:
    from scipy import ndimage  # slow import

    radius, spread = ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1))[strength - 1]
    at = np.arange(-3, 4)
    disk = (at[:, None] ** 2 + at**2 <= radius**2).astype(float)
    edge = np.exp(-(np.arange(-1, 2) ** 2) / (2 * spread**2))
    kernel = ndimage.convolve(disk, np.outer(edge, edge), mode="constant")
    return ndimage.convolve(x, (kernel / kernel.sum())[None, :, :, None], mode="mirror")


def motion_blur(x: np.ndarray, strength: int, rngs: Generators) -> np.ndarray:
    radius, spread = ((6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5))[strength - 1]
    angle = np.deg2rad([rng.uniform(-45, 45) for rng in rngs])
    n, height, width = x.shape[:3]
    weights = np.exp(-(np.arange(radius + 1) ** 2) / (2 * spread**2))
    total = np.zeros_like(x)
    for step, weight in enumerate(weights / weights.sum()):
        down, right = (np.rint(step * f(angle)).astype(int) for f in (np.sin, np.cos))
        rows = np.clip(np.arange(height) + down[:, None], 0, height - 1)
        columns = np.clip(np.arange(width) + right[:, None], 0, width - 1)
        total += weight * x[np.arange(n)[:, None, None], rows[:, :, None], columns[:, None, :]]
    return total


def fog(x: np.ndarray, strength: int, rngs: Generators) -> np.ndarray:
    from scipy import ndimage  # slow import

    thickness, decay = ((0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75))[strength - 1]
    height, width = x.shape[1:3]
    layer, cells, weight = np.zeros(x.shape[:3]), 2, 1.0
    while cells <= 2 * max(height, width):
        values = _drawn(rngs, lambda rng, n=cells: rng.random((n, n)))
        # Bilinear between the cells' corners; opposite edges meet.
        rows, columns = (np.arange(size) / size * cells for size in (height, width))
        grid = np.meshgrid(np.arange(len(x)), rows, columns, indexing="ij")
        layer += weight * ndimage.map_coordinates(values, grid, order=1, mode="grid-wrap")
        cells, weight = 2 * cells, weight / decay
    layer -= layer.min(axis=(1, 2), keepdims=True)
    layer /= np.maximum(layer.max(axis=(1, 2), keepdims=True), 1e-12)
    most = x.max(axis=(1, 2, 3), keepdims=True)
    return (x + thickness * layer[..., None]) * most / (most + thickness)


def brightness(x: np.ndarray, strength: int, rngs: Generators) -> np.ndarray:
    return x + (0.05, 0.1, 0.15, 0.2, 0.3)[strength - 1]


def contrast(x: np.ndarray, strength: int, rngs: Generators) -> np.ndarray:
    mean = x.mean(axis=(1, 2), keepdims=True)
    return (x - mean) * (0.75, 0.5, 0.4, 0.3, 0.15)[strength - 1] + mean


def jpeg(x: np.ndarray, strength: int, rngs: Generators) -> np.ndarray:
    quality = (80, 65, 58, 50, 40)[strength - 1]

    def compressed(image, Image):
        buffer = io.BytesIO()
        Image.fromarray(np.rint(255 * image).astype(np.uint8)).save(buffer, "JPEG", quality=quality)
        return np.asarray(Image.open(buffer)) / 255

    return _by_pillow(x, compressed)


def pixelate(x: np.ndarray, strength: int, rngs: Generators) -> np.ndarray:
    share = (0.95, 0.9, 0.85, 0.75, 0.65)[strength - 1]
    height, width = x.shape[1:3]
    small = max(int(share * width), 1), max(int(share * height), 1)

    def coarse(image, Image):
        whole = Image.fromarray(np.rint(255 * image).astype(np.uint8))
        box = Image.Resampling.BOX
        return np.asarray(whole.resize(small, box).resize((width, height), box)) / 255

    return _by_pillow(x, coarse)


def _by_pillow(x: np.ndarray, change: Callable) -> np.ndarray:
    from PIL import Image  # slow import

    grey = x.shape[-1] == 1
    images = [change(one[..., 0] if grey else one, Image) for one in x]
    return np.stack(images)[..., None] if grey else np.stack(images)


# In the order of their numbers in partitions, from 1.
CORRUPTIONS: dict[str, Change] = {
    one.__name__: one
    for one in (
        gaussian_noise, shot_noise, impulse_noise, defocus_blur, motion_blur,
        fog, brightness, contrast, jpeg, pixelate,
    )
}  # fmt: skip
KINDS = tuple(CORRUPTIONS)
STRENGTHS = 5


def corrupt(images: np.ndarray, kind: str, strength: int, idx: np.ndarray) -> np.ndarray:
    """Return corrupted images [n, h, w, c] with values in 0..1.

    Args:
      images: values in 0..1, with one channel or three.
      kind: a name in `CORRUPTIONS`.
      strength: 1 to 5.
      idx: index of each image, which determines its random numbers.
    """
    if not len(images):
        return images
    rngs = [np.random.default_rng((STREAM, int(i))) for i in idx]
    return np.clip(CORRUPTIONS[kind](images, strength, rngs), 0, 1)
