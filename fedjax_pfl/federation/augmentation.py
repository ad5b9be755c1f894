"""Data augmentation of training images within the compiled step.

An augmentation is a function `(key, images [B, H, W, C]) -> images` of the same shape and type. Its
input is stored samples, before scaling, so that crops pad with black. Each minibatch has its own
key, folded from (seed, purpose, round, permanent client id, step). Only training batches are
augmented.
"""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp

from fedjax_pfl.data.federated import FederatedData
from fedjax_pfl.utils.errors import InputError, first_line, require

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


def augmented(augment: Augmentation, key: jax.Array, samples: jax.Array) -> jax.Array:
    """Return what an augmentation makes of samples [B, ...].

    Raises:
      InputError: another number, shape or type of samples, which would be broadcast or cast.
    """
    changed = augment(key, samples)
    what = f"What augment returns for samples {list(samples.shape)} of {samples.dtype}"
    allowed = "of the same shape and type"
    is_array = hasattr(changed, "shape") and hasattr(changed, "dtype")
    require(is_array, what, type(changed).__name__, allowed)
    same = changed.shape == samples.shape and changed.dtype == samples.dtype
    require(same, what, f"{list(changed.shape)} of {changed.dtype}", allowed)
    return changed


def check_augmentation(augment: str | Augmentation | None, data: FederatedData) -> None:
    """Check an augmentation before anything is compiled.

    Raises:
      InputError: a named one and samples that are not images; or a function that fails, or see
        `augmented`.
    """
    sample_shape = data.sample_shape
    if augment is None:
        return
    if isinstance(augment, str):
        if len(sample_shape) != 3:
            raise InputError(
                f"augment={augment!r} takes images [height, width, channels]; the data set's "
                f"samples have the shape {tuple(sample_shape)}."
            )
        return
    allowed = "a name or a function (key, samples) -> samples"
    require(callable(augment), "augment", augment, allowed)
    batch = jax.ShapeDtypeStruct((3, *sample_shape), data.samples.dtype)
    try:
        jax.eval_shape(partial(augmented, augment), jax.random.key(0), batch)
    except InputError:
        raise
    except Exception as error:
        raise InputError(
            f"augment can't change samples {list(batch.shape)}: {first_line(error)}"
        ) from error
