"""Data augmentation of training images within the compiled step.

An augmentation is a function `(key, images [B, H, W, C]) -> images` of the same shape and type. Its
input is stored samples, before scaling, so that crops pad with black. Each minibatch has its own
key, folded from (seed, purpose, round, permanent client id, step). Only training batches are
augmented.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from fedjax_pfl.utils.errors import InputError

Augmentation = Callable[[jax.Array, jax.Array], jax.Array]


def random_flip(key: jax.Array, images: jax.Array) -> jax.Array:
    """Flip each image horizontally with probability 1/2."""
    flipped = jax.random.bernoulli(key, jnp.float32(0.5), (images.shape[0], 1, 1, 1))
    return jnp.where(flipped, images[:, :, ::-1], images)


def random_crop(key: jax.Array, images: jax.Array, padding: int = 4) -> jax.Array:
    """Crop each image to its size after padding it with `padding` zeros on each side."""
    around = (padding, padding)
    padded = jnp.pad(images, ((0, 0), around, around, (0, 0)))
    corners = jax.random.randint(key, (images.shape[0], 2), 0, 2 * padding + 1, jnp.int32)

    def window(image, corner):
        return jax.lax.dynamic_slice(image, (*corner, jnp.int32(0)), images.shape[1:])

    return jax.vmap(window)(padded, corners)


def crop_flip(key: jax.Array, images: jax.Array) -> jax.Array:
    """Apply `random_crop` with a padding of 4, then `random_flip`, as is common for CIFAR."""
    crop_key, flip_key = jax.random.split(key)
    return random_flip(flip_key, random_crop(crop_key, images))


AUGMENTATIONS: dict[str, Augmentation] = {"crop_flip": crop_flip, "flip": random_flip}


def check_augmentation(augment: str | Augmentation | None, sample_shape: tuple[int, ...]) -> None:
    """Raise `InputError` for a named augmentation if samples are not images."""
    if isinstance(augment, str) and len(sample_shape) != 3:
        raise InputError(
            f"augment={augment!r} takes images [height, width, channels]; the data set's samples "
            f"have the shape {tuple(sample_shape)}."
        )
