"""Shift in features: clients whose images are rotated or corrupted."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from fedjax_pfl.data.corruptions import KINDS, STRENGTHS, corrupt
from fedjax_pfl.data.dataset import Dataset
from fedjax_pfl.data.partitions.partition import Partition
from fedjax_pfl.data.partitions.rule_registry import parse_options
from fedjax_pfl.data.partitions.statistics import SPLITS
from fedjax_pfl.utils.boundary import checked
from fedjax_pfl.utils.conversions import keyword_defaults, number
from fedjax_pfl.utils.errors import InputError, require, require_name, require_whole

EVERY = "all"


def rotated(num_clients: int, rng: np.random.Generator, *, groups: int = 4) -> dict[str, Any]:
    """Groups of clients with equally many members see images turned by quarter turns.

    With four groups by 0, 90, 180 and 270 degrees counterclockwise, with two by 0 and 180, as in
    IFCA (Ghosh et al., NeurIPS 2020). Members are drawn at random.

    Args:
      groups: 2 or 4.
    """
    require(groups in (2, 4), "groups of feature_shift 'rotate'", groups, "2 or 4")
    turns = rng.permutation(num_clients) % groups * (4 // groups)
    return {"turns": turns.astype(np.int32)}


def corruptions(
    num_clients: int,
    rng: np.random.Generator,
    *,
    share: float = 0.5,
    kind: str = EVERY,
    strength: int = 0,
) -> dict[str, Any]:
    """A share of the clients, drawn at random, has images with one corruption each.

    The pairs of kind and strength are dealt in turn, in a random order: with 50 such clients each
    of the ten kinds by five strengths is one client's, as in pFedFDA (NeurIPS 2024).

    Args:
      share: part of the clients, rounded to the nearest number.
      kind: a name in `fedjax_pfl.data.CORRUPTIONS`, or "all".
      strength: 1 to 5, or 0 for all.
    """
    share = number("share of feature_shift 'corrupt'", share, "a fraction in [0, 1]", 0, 1)
    require_name("kind of corruption", kind, (EVERY, *KINDS))
    strength = require_whole("strength of feature_shift 'corrupt'", strength, 0, STRENGTHS)
    kinds = range(1, len(KINDS) + 1) if kind == EVERY else (KINDS.index(kind) + 1,)
    strengths = (strength,) if strength else range(1, STRENGTHS + 1)
    pairs = rng.permutation([(one, much) for one in kinds for much in strengths])
    chosen = rng.permutation(num_clients)[: int(np.floor(share * num_clients + 0.5))]
    table = np.zeros((num_clients, 2), np.int32)
    table[chosen] = pairs[np.arange(len(chosen)) % len(pairs)]
    return {"corruption": table}


# rule(num_clients, rng, *, option=default, ...) -> fields of the partition
FEATURE_SHIFTS: dict[str, Callable[..., dict[str, Any]]] = {
    "corrupt": corruptions,
    "rotate": rotated,
}


@checked
def shift_features(partition: Partition, shift: str, seed: int, **options: Any) -> Partition:
    """Return a partition whose clients see rotated or corrupted images.

    Training, validation and test samples of a client are changed alike. The partition's file and
    its hash contain who sees what.

    Args:
      partition: of images; by any rule.
      shift: "rotate" or "corrupt".
      seed: of the choice of clients.
      **options: of `rotated` or `corruptions`.

    Raises:
      InputError: an unknown shift or option, a value out of range, or features shifted before.
    """
    require_name("feature_shift", shift, tuple(FEATURE_SHIFTS))
    if partition.turns is not None or partition.corruption is not None:
        raise InputError("The partition has a feature shift already: shift it only once.")
    defaults = keyword_defaults(FEATURE_SHIFTS[shift])
    options = parse_options(options, defaults, f"option of feature_shift {shift!r}")
    rng = np.random.default_rng([require_whole("seed", seed, 0, bits=63), 3])
    fields = FEATURE_SHIFTS[shift](partition.num_clients, rng, **options)
    facts = {"feature_shift": shift, **{f"shift_{name}": x for name, x in options.items()}}
    return replace(partition, options=partition.options | facts, **fields)


def with_corruption(dataset: Dataset, partition: Partition) -> Dataset:
    """Return the data set with each client's samples as `partition.corruption` has them.

    Images are scaled to 0..1 by the smallest and largest value of the clients' training samples;
    an image beyond these by its own, too.

    Raises:
      InputError: samples that are not images, or that clients share.
    """
    if partition.corruption is None or not partition.corruption.any():
        return dataset
    shape = dataset.input_shape
    images = len(shape) == 3 and shape[2] in (1, 3)
    require(images, "Shape of a sample to corrupt", shape, "that of images, (h, w, 1) or (h, w, 3)")
    shared = partition.overlaps()[0]
    if shared:
        raise InputError(
            f"{shared} samples are held by several clients, so no client can have its own "
            "corruption of them: take a partition without overlap."
        )
    samples, kept = dataset.pool()[0].copy(), dataset.train_x.dtype
    fitted = samples[np.unique(partition.train.idx)] if len(partition.train.idx) else samples
    low, high = float(fitted.min()), float(fitted.max())
    for client, (kind, strength) in enumerate(partition.corruption.tolist()):
        lists = [partition.client(split, client) for split in SPLITS]
        held = np.unique(np.concatenate(lists))
        if kind and len(held):
            least = np.minimum(low, samples[held].min((1, 2, 3), keepdims=True))
            span = np.maximum(high, samples[held].max((1, 2, 3), keepdims=True)) - least
            plain = (samples[held] - least) / np.maximum(span, 1e-12)
            changed = least + span * corrupt(plain, KINDS[kind - 1], strength, held)
            samples[held] = np.rint(changed).astype(kept) if kept == np.uint8 else changed
    count = dataset.num_train
    return replace(dataset, train_x=samples[:count], test_x=samples[count:])
