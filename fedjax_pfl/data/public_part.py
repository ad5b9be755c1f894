"""The public part of a data set, which a base model is pretrained on, and the rest for clients.

Hashes of single samples tell which of them a base model was trained on.
"""

import hashlib
from dataclasses import replace

import numpy as np

from fedjax_pfl.data.dataset import Dataset
from fedjax_pfl.utils.boundary import checked
from fedjax_pfl.utils.conversions import convert, decimal
from fedjax_pfl.utils.errors import InputError, refused, require, require_name, shown

ALLOWED = "classes:0-4,7, share:0.2 or column:NAME=VALUE,VALUE"


@checked
def split_public(dataset: Dataset, part: str, seed: int = 0) -> tuple[Dataset, Dataset]:
    """Return (public part, rest) of a data set, training and test samples alike.

    Args:
      dataset: the data set.
      part: "classes:0-4,7" for classes, which both parts number from 0; "share:0.2" for a random
        share of the samples; "column:NAME=VALUE,VALUE" for the samples with some values of a
        column, such as a domain.
      seed: of the random share.

    Raises:
      InputError: not of these forms, or a part without training samples.
    """
    kind, colon, text = part.partition(":") if isinstance(part, str) else ("", "", "")
    kinds = {"classes": _of_classes, "share": _of_share, "column": _of_column}
    if not colon or kind not in kinds:
        raise InputError(f"public must read {ALLOWED}, got {shown(part)}.")
    public = kinds[kind](dataset, text, seed)
    for name, chosen in (("The public part", public), ("The rest", ~public)):
        if not chosen[: dataset.num_train].any():
            raise InputError(f"{name} of {dataset.name!r} by {shown(part)} has no training sample.")
    renumber = kind == "classes"
    note = f"its public part {part}"
    # Both parts have the public part's vocabulary, with whose ids base models are trained.
    known = dataset.token_ids(np.flatnonzero(public[: dataset.num_train]))
    dataset = dataset if known is None else dataset.with_vocabulary(known)
    return (
        _only(dataset, public, f"only {note}", renumber),
        _only(dataset, ~public, f"without {note}", renumber),
    )


def _of_classes(dataset: Dataset, text: str, seed: int) -> np.ndarray:
    if not dataset.has_classes:
        raise InputError(f"public=classes needs classes, and {dataset.name!r} has none.")
    classes: list[int] = []
    for word in text.split(","):
        first, dash, last = word.partition("-")
        low, high, most = decimal(first), decimal(last if dash else first), dataset.num_classes - 1
        if low is None or high is None or not low <= high <= most:
            raise refused("public", word, f"classes in 0..{most}, such as 0-4,7")
        classes += range(low, high + 1)
    return np.isin(dataset.labels, classes)


def _of_share(dataset: Dataset, text: str, seed: int) -> np.ndarray:
    share = convert("public=share", text, float)
    require(0 < share < 1, "public=share", share, "between 0 and 1")
    rng = np.random.default_rng(seed)
    parts = []
    for count in (dataset.num_train, dataset.num_test):
        part = np.zeros(count, bool)
        part[rng.permutation(count)[: round(share * count)]] = True
        parts.append(part)
    return np.concatenate(parts)


def _of_column(dataset: Dataset, text: str, seed: int) -> np.ndarray:
    name, equals, words = text.partition("=")
    if not equals:
        raise InputError(f"public must read {ALLOWED}, got {shown(f'column:{text}')}.")
    require_name(f"column of {dataset.name!r}:", name, dataset.columns)
    column = dataset.columns[name].astype(str)
    values = [word.strip() for word in words.split(",")]
    for value in values:
        require_name(f"value of the column {name!r}:", value, {*column.tolist()})
    return np.isin(column, values)


def _only(dataset: Dataset, chosen: np.ndarray, note: str, renumber: bool) -> Dataset:
    """Return the data set with some of its samples, by a mask of the pool."""
    train, test = chosen[: dataset.num_train], chosen[dataset.num_train :]
    labels = [dataset.train_y[train], dataset.test_y[test]]
    count, names = dataset.num_classes, dataset.class_names
    if renumber:
        kept = np.unique(np.concatenate(labels))
        labels = [np.searchsorted(kept, one).astype(np.int32) for one in labels]
        names = tuple(names[k] if names else str(k) for k in kept.tolist())
        count = len(kept)
    return replace(
        dataset,
        train_x=dataset.train_x[train],
        train_y=labels[0],
        test_x=dataset.test_x[test],
        test_y=labels[1],
        num_classes=count,
        class_names=names,
        note="; ".join(filter(None, [note, dataset.note])),
        columns={name: values[chosen] for name, values in dataset.columns.items()},
    )


def sample_hashes(samples: np.ndarray) -> np.ndarray:
    """Return the first 64 bits of a hash of each stored sample, uint64 [n].

    A sample that is stored otherwise, such as resized or scaled, has another hash.

    Args:
      samples: [n, ...].
    """
    rows = np.ascontiguousarray(samples, samples.dtype.newbyteorder("<")).reshape(len(samples), -1)
    digests = b"".join(hashlib.blake2b(row.tobytes(), digest_size=8).digest() for row in rows)
    return np.frombuffer(digests, "<u8").astype(np.uint64)
