from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_pfl.data.dataset import dataset_from_arrays
from fedjax_pfl.data.partitions.partition import Partition
from fedjax_pfl.federation.augmentation import AUGMENTATIONS, crop_flip, random_crop, random_flip
from fedjax_pfl.federation.batching import Schedule
from fedjax_pfl.federation.build import federate
from fedjax_pfl.training.client_loop import run_clients
from fedjax_pfl.training.scoring import score
from fedjax_pfl.utils import keys
from fedjax_pfl.utils.errors import InputError
from fedjax_pfl.utils.structs import Broadcast

SIZES = (5, 2, 3)


def federation_of(augment, order=(0, 1, 2), client_execution="map", **options):
    """Ragged clients with random uint8 images of 6x5x3; no two pixels of an image are equal."""
    rng = np.random.default_rng(0)
    total = sum(SIZES) + len(SIZES)
    x = np.stack([rng.permutation(np.arange(1, 91)) for _ in range(total)]).astype(np.uint8)
    data = dataset_from_arrays("images", x.reshape(-1, 6, 5, 3), np.arange(total) % 3)
    lists = np.split(np.arange(sum(SIZES)), np.cumsum(SIZES)[:-1])
    partition = Partition.from_lists(
        train=[lists[i] for i in order],
        test=[[total - 1 - i] for i in order],
        validation=[[] for _ in order],
    )
    return federate(
        data, partition, "softmax", augment=augment, batch_size=2, client_ids=np.array(order),
        input_scaling="unit", client_execution=client_execution, **options,
    )  # fmt: skip


def windows_of(image, padding=4):
    """All crops of one image and their mirror images, by corner: [(2 p + 1)^2, 2, H, W, C]."""
    height, width = image.shape[:2]
    padded = np.pad(image, ((padding, padding), (padding, padding), (0, 0)))
    crops = [
        padded[i : i + height, j : j + width]
        for i in range(2 * padding + 1)
        for j in range(2 * padding + 1)
    ]
    return np.stack([np.stack([crop, crop[:, ::-1]]) for crop in crops])


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_crops_are_windows_of_the_padded_image(dtype):
    images = np.random.default_rng(0).integers(1, 255, (300, 6, 5, 3)).astype(dtype)
    out = np.asarray(jax.jit(crop_flip)(jax.random.key(0), images))
    assert out.shape == images.shape and out.dtype == dtype
    corners, mirrored = np.zeros(81, int), 0
    for image, got in zip(images, out, strict=True):
        same = (windows_of(image) == got).all(axis=(2, 3, 4))
        if same.sum() == 1:  # a corner of a few equal pixels may be two windows
            at = np.argwhere(same)[0]
            corners[at[0]] += 1
            mirrored += at[1]
        assert same.any()
    assert corners.sum() > 280 and (corners > 0).sum() > 70 and corners.max() < 15
    assert 110 < mirrored < 190


def test_flips_come_half_the_time_and_to_each_sample_on_its_own():
    images = np.random.default_rng(0).random((2000, 2, 3, 1))
    out = np.asarray(random_flip(jax.random.key(1), images))
    flipped = (out == images[:, :, ::-1].astype(np.float32)).all(axis=(1, 2, 3))
    kept = (out == images.astype(np.float32)).all(axis=(1, 2, 3))
    assert (flipped ^ kept).all()
    assert 900 < flipped.sum() < 1100
    again = random_flip(jax.random.key(2), images)
    assert not np.array_equal(out, again)


def test_crop_without_padding_is_the_image():
    images = np.random.default_rng(0).random((3, 4, 4, 1)).astype(np.float32)
    np.testing.assert_array_equal(random_crop(jax.random.key(0), images, 0), images)


@partial(jax.jit, static_argnames="split")
def batches_seen(federation, split="train"):
    """All inputs that the clients' steps are handed, [N, steps, B, ...], in a fixed order."""
    count = federation.num_clients
    return run_clients(
        federation,
        lambda seen, batch, rng, broadcast, client: seen.at[client.step].set(batch.inputs),
        jnp.zeros((count, 6, 2, *federation.data.sample_shape)),
        rows=jnp.arange(count),
        key=keys.of_round(jax.random.key(0), "train", 3),
        schedule=Schedule(epochs=2, batch_size=2, shuffle=False),
        split=split,
    )[0]


@pytest.mark.costly
def test_training_batches_are_augmented_and_keyed_by_permanent_ids():
    seen = batches_seen(federation_of("crop_flip"))
    np.testing.assert_array_equal(
        batches_seen(federation_of("crop_flip", client_execution="vmap")), seen
    )
    order = np.array([2, 0, 1])
    np.testing.assert_array_equal(
        batches_seen(federation_of("crop_flip", order, client_execution=2)), seen[order]
    )
    plain = batches_seen(federation_of(None))
    assert not np.array_equal(seen, plain)
    # Client 1 has two samples: its two epochs see each of them, cropped anew.
    for step in (0, 1):
        for got, image in zip(np.asarray(seen[1, step]), np.asarray(plain[1, 0]), strict=True):
            assert (abs(windows_of(image) - got) < 1e-6).all(axis=(2, 3, 4)).any()
    assert not np.array_equal(seen[1, 0], seen[1, 1])


scored = jax.jit(score, static_argnames="split")


@pytest.mark.costly
def test_other_splits_and_evaluation_are_untouched():
    plain, augmented = federation_of(None), federation_of("crop_flip")
    np.testing.assert_array_equal(batches_seen(augmented, "test"), batches_seen(plain, "test"))
    model = jax.jit(plain.initial_model)(jax.random.key(0))
    for split in ("test", "train"):
        rows = jnp.arange(3)
        for got, wanted in zip(
            scored(augmented, Broadcast(model), rows, split),
            scored(plain, Broadcast(model), rows, split),
            strict=True,
        ):
            np.testing.assert_array_equal(got, wanted)


def test_a_function_of_ones_own():
    seen = batches_seen(federation_of(lambda key, images: 255 - images))
    plain = batches_seen(federation_of(None))
    np.testing.assert_allclose(seen[0, 0], 1 - plain[0, 0], atol=1e-6)


@pytest.mark.parametrize(
    ("augment", "message"),
    [
        (
            lambda key, images: images[:1],
            r"returns for samples \[3, .*\] of uint8 must be of the same shape .*, got '\[1,",
        ),
        (lambda key, images: images.mean(0), "must be of the same shape and type, got"),
        (lambda key, images: images[:, :1], "must be of the same shape and type, got"),
        (lambda key, images: images / 255.0, "must be of the same shape and type, got .*float32"),
        (lambda key, images: None, "must be of the same shape and type, got 'NoneType'"),
        (lambda key, images: images.rotate(), r"augment can't change samples \[3, .*rotate"),
        (True, r"augment must be a name or a function \(key, samples\) -> samples, got True"),
    ],
)
def test_augmentations_keep_the_number_and_shape_of_images(augment, message):
    with pytest.raises(InputError, match=message):
        federation_of(augment)


def test_augmentations_keep_the_number_of_images_of_every_minibatch():
    """One that returns three images passes the check before compiling."""
    federation = federation_of(lambda key, images: images[jnp.arange(3) % len(images)])
    with pytest.raises(InputError, match=r"samples \[2, .*must be of the same shape"):
        batches_seen(federation)


def test_names():
    assert set(AUGMENTATIONS) == {"flip", "crop_flip"}
    with pytest.raises(InputError, match="Unknown augmentation 'crop'"):
        federation_of("crop")
    flat = dataset_from_arrays("flat", np.zeros((4, 7), np.float32), [0, 1, 0, 1])
    partition = Partition.from_lists(train=[[0, 1]], test=[[2, 3]], validation=[[]])
    with pytest.raises(InputError, match=r"takes images .* shape \(7,\)"):
        federate(flat, partition, "mlp", augment="flip")
