"""Data sets: checked NumPy arrays of samples and labels."""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from fedjax_pfl.data.columns import (
    check_feature_names,
    check_frame,
    checked_columns,
    feature_names,
)
from fedjax_pfl.data.labels import CLASSES, TASKS, checked_labels, numbered_classes
from fedjax_pfl.data.limits import require_memory
from fedjax_pfl.data.vocabulary import Vocabulary, encode, token_ids, tokenize, whole_texts
from fedjax_pfl.utils.boundary import checked
from fedjax_pfl.utils.conversions import as_array, finite_float32, is_list, require_unmasked
from fedjax_pfl.utils.errors import InputError, find_name, refused, require, require_whole

# Token ids are converted to float32 on the way to an embedding, which is exact up to here.
MAX_VOCABULARY = 2**24
# Tables of clients and classes have one column per class, and models one output.
MAX_CLASSES = 2**20


@dataclass(frozen=True, eq=False)
class Dataset:
    """Labelled samples in their original order; build one with `dataset_from_arrays`.

    Attributes:
      name: name of the data set in results.
      train_x: training samples [n, ...], uint8 or float32; images are [n, height, width, channel];
        texts are token ids, int32 [n, length], if there is a `vocab_size`.
      train_y: training labels: int32 [n] in 0..num_classes-1; of other tasks int32 or float32
        [n, K], see `TASKS`.
      test_x: official test samples [m, ...] of the same type and shape; m = 0 without any.
      test_y: official test labels of the same type and shape.
      num_classes: number of classes C; 1 for tasks without classes.
      input_scaling: name of the scaling that `default` means (see `fedjax_pfl.data.scaling`).
      vocab_size: number of token ids if samples are texts, otherwise None.
      vocabulary: which of these tokens models know, by the clients' training samples; None if
        the ids are given, and are the model's.
      class_names: name of each class, or empty if unknown.
      note: a remark for readers of results, such as lossy compression, a licence or the order of
        the samples, or empty.
      task: a name in `TASKS`.
      columns: further values of each sample of the pool, such as its writer: int64 or text [n + m]
        by name. The rule `by_column` makes a client of each value.
      words: stored id of each word of the texts, for `encode`; empty if the ids are given.
      feature_names: names of the columns of the training samples' data frame or table, or empty.
    """

    name: str
    train_x: np.ndarray
    train_y: np.ndarray
    test_x: np.ndarray
    test_y: np.ndarray
    num_classes: int
    input_scaling: str
    vocab_size: int | None = None
    class_names: tuple[str, ...] = ()
    note: str = ""
    task: str = CLASSES
    columns: Mapping[str, np.ndarray] = field(default_factory=dict)
    vocabulary: Vocabulary | None = None
    words: Mapping[str, int] = field(default_factory=dict)
    feature_names: tuple[str, ...] = ()

    def __repr__(self) -> str:
        sizes = f"{self.num_train} train" + (f", {self.num_test} test" if self.num_test else "")
        return f"Dataset({self.name}: {sizes}, {self.labelling}, {self.input_shape})"

    @property
    def has_classes(self) -> bool:
        """Whether each sample has one class."""
        return self.task == CLASSES

    @property
    def num_outputs(self) -> int:
        """Number of a model's outputs for one sample, or for one token."""
        if self.has_classes:
            return self.num_classes
        return self.vocab_size or 0 if self.task == "next_token" else self.train_y.shape[1]

    @property
    def num_train(self) -> int:
        """Number of training samples."""
        return len(self.train_y)

    @property
    def num_test(self) -> int:
        """Number of official test samples, 0 if the data set has no official split."""
        return len(self.test_y)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one sample."""
        return self.train_x.shape[1:]

    @property
    def labels(self) -> np.ndarray:
        """Classes of the pool [num_train + num_test], int32; all 0 without classes."""
        if not self.has_classes:
            return np.zeros(self.num_train + self.num_test, np.int32)
        return np.concatenate([self.train_y, self.test_y])

    def pool(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the samples and labels that partitions index: training, then official test ones.

        The samples are copied if there is a test split, so call it only once.
        """
        labels = np.concatenate([self.train_y, self.test_y])
        if self.num_test == 0:
            return self.train_x, labels
        size = self.train_x.nbytes + self.test_x.nbytes
        require_memory(f"The samples of data set {self.name!r} in one array", size)
        return np.concatenate([self.train_x, self.test_x]), labels

    def samples(self, rows: np.ndarray) -> np.ndarray:
        """Return the samples at pool indices [k], without a copy of the pool."""
        if self.num_test == 0:
            return self.train_x[rows]
        samples = np.empty((len(rows), *self.input_shape), self.train_x.dtype)
        official = rows < self.num_train
        samples[official] = self.train_x[rows[official]]
        samples[~official] = self.test_x[rows[~official] - self.num_train]
        return samples

    def token_ids(self, rows: np.ndarray) -> np.ndarray | None:
        """Return the model's id of each stored token id, by the training samples at pool indices.

        None if the stored ids are the model's; see `fedjax_pfl.data.vocabulary`.
        """
        if self.vocabulary is None or self.vocab_size is None:
            return None
        labels = np.concatenate([self.train_y, self.test_y])

        def texts(some: np.ndarray) -> np.ndarray:
            return whole_texts(self.samples(some), labels[some])

        return token_ids(self.vocabulary, self.vocab_size, texts, rows)

    @checked
    def encode(self, texts: Iterable[Any]) -> np.ndarray:
        """Return new texts as stored token ids, int32 [n, length], such as `Result.predict` takes.

        Args:
          texts: a list, an array or a series of texts.

        Raises:
          InputError: the data set is none of `ag_news` and `text_csv`, or a text is another value.
        """
        sources = "one that ag_news or text_csv read, whose words are known"
        require(len(self.words) > 0, "Data set of new texts", self.name, sources)
        require(not isinstance(texts, str), "texts", texts, "a list of texts")
        rows = list(texts)
        for i, text in enumerate(rows):
            require(isinstance(text, str), f"texts[{i}]", text, "a text")
        return encode(map(tokenize, rows), self.words, self.input_shape[0])

    def with_vocabulary(self, known: np.ndarray) -> "Dataset":
        """Return the same texts with a model's ids, which are then given."""

        def renamed(ids: np.ndarray) -> np.ndarray:
            return np.where(ids < 0, ids, known[np.maximum(ids, 0)]).astype(np.int32)

        train_y, test_y = self.train_y, self.test_y
        if not self.has_classes:
            train_y, test_y = renamed(train_y), renamed(test_y)
        return replace(
            self,
            train_x=renamed(self.train_x),
            train_y=train_y,
            test_x=renamed(self.test_x),
            test_y=test_y,
            vocab_size=int(known.max()) + 1,
            vocabulary=None,
            words={word: int(known[number]) for word, number in self.words.items()},
        )

    def fingerprint(self) -> str:
        """Return the SHA-256 of the arrays (hexadecimal), which is computed only once.

        Data sets with the same fingerprint have the same samples in the same order, so that a
        saved partition of one fits the other.
        """
        return self._fingerprint

    @cached_property
    def _fingerprint(self) -> str:
        other = "" if self.has_classes else f" {self.task}"
        other += "" if self.vocabulary is None else f" {tuple(self.vocabulary)}"
        digest = hashlib.sha256(f"{self.num_classes} {self.vocab_size}{other}".encode())
        for array in (self.train_x, self.train_y, self.test_x, self.test_y):
            # Little-endian, so that the hash doesn't depend on the machine.
            array = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
            digest.update(f"{array.dtype.str} {array.shape}".encode())
            digest.update(array.reshape(-1).view(np.uint8).data)
        return digest.hexdigest()

    def without_samples(self) -> "Dataset":
        """Return the same data set, fingerprint included, without its samples."""
        other = replace(self, train_x=self.train_x[:0].copy(), test_x=self.test_x[:0].copy())
        vars(other)["_fingerprint"] = self.fingerprint()
        return other

    @property
    def labelling(self) -> str:
        """Description of the labels."""
        return {
            CLASSES: f"{self.num_classes} classes",
            "multi_label": f"{self.num_outputs} labels",
            "regression": f"{self.num_outputs} number{'s' * (self.num_outputs > 1)} to predict",
            "next_token": "the next token of each",
        }[self.task]

    def describe(self) -> str:
        """Return one line: name, numbers of samples, shape, classes and the note."""
        parts = [f"{self.num_train:,} training"]
        parts += [f"{self.num_test:,} test"] if self.num_test else []
        shape = "x".join(map(str, self.input_shape))
        if self.vocab_size is None:
            what = f"samples {shape}"
        else:
            what = f"texts of {shape} tokens, vocabulary of {self.vocab_size:,}"
        line = f"{self.name}: {' and '.join(parts)} {what}, {self.labelling}"
        return f"{line}; {self.note}" if self.note else line


@checked
def dataset_from_arrays(
    name: str,
    train_x: ArrayLike,
    train_y: ArrayLike,
    test_x: ArrayLike | None = None,
    test_y: ArrayLike | None = None,
    *,
    num_classes: int | None = None,
    input_scaling: str | None = None,
    vocab_size: int | None = None,
    class_names: list[str] | tuple[str, ...] = (),
    note: str = "",
    task: str = CLASSES,
    columns: Mapping[str, ArrayLike] | None = None,
    vocabulary: Vocabulary | None = None,
) -> Dataset:
    """Make a `Dataset` of arrays, or of lists, data frames, series and tensors on the host.

    Args:
      name: name of the data set in results.
      train_x: [n, ...] uint8, bool or float, all finite: images [n, h, w, c] or [n, h, w], which
        get a channel axis, or [n, d]. A data frame may have integers. With `vocab_size`: integer
        token ids [n, length].
      train_y: [n] (or [n, 1]) integers in 0..C-1, text or bool; for other tasks see `task`.
      test_x: official test samples, or None.
      test_y: official test labels, or None.
      num_classes: C, at most 2**20; None takes the largest label + 1, and then every smaller
        label must occur.
      input_scaling: scaling of `default`; None means "half" for pixels, which are arrays of uint8
        but not rows of 0 and 1, and "raw" otherwise. Columns of data frames are numbers.
      vocab_size: number of token ids of texts, or None.
      class_names: C names, or empty: then labels that are text or bool are the names, sorted.
      note: a remark for readers of results, or empty.
      task: "classification"; "regression" for numbers to predict, [n] or [n, K]; "multi_label" for
        0 or 1 for each of K labels, [n, K]; "next_token" for the token after each token of a text,
        [n, length], -1 if there is none.
      columns: integers or text by name, of the training samples and then of the test samples, for
        the rule `by_column`.
      vocabulary: limits of a vocabulary that is fitted to the clients' training samples; None if
        the token ids are the model's.

    Raises:
      InputError: a shape, type or value that is not allowed.
    """
    task = find_name("task", task, TASKS)
    if (test_x is None) != (test_y is None):
        raise InputError(
            f"Data set {name!r} has only one of test_x and test_y: give both or neither."
        )
    if vocab_size is not None:
        vocab_size = require_whole("vocab_size", vocab_size, 1, MAX_VOCABULARY)
    if task == CLASSES:
        train_y, test_y, class_names = numbered_classes(name, train_y, test_y, tuple(class_names))
    features = feature_names(train_x)
    check_feature_names(f"test samples of data set {name!r}", test_x, features, "train_x.columns")
    train_x = _samples(f"training samples of data set {name!r}", train_x, vocab_size)
    labels = partial(checked_labels, task=task, texts=train_x.shape[1:], vocab_size=vocab_size)
    train_y = labels(f"training labels of data set {name!r}", train_y, len(train_x))
    require(len(train_y) > 0, f"Number of training samples of data set {name!r}", 0, "at least 1")
    if test_x is None:
        test_x, test_y = train_x[:0], train_y[:0]
    else:
        test_x = _samples(f"test samples of data set {name!r}", test_x, vocab_size)
        test_y = labels(f"test labels of data set {name!r}", test_y, len(test_x))
    if (test_x.shape[1:], test_x.dtype) != (train_x.shape[1:], train_x.dtype):
        raise InputError(
            f"Test samples of data set {name!r} are {test_x.dtype} {test_x.shape[1:]}, but its "
            f"training samples are {train_x.dtype} {train_x.shape[1:]}: both must be the same."
        )
    _check_range(name, train_x, test_x)
    if task == CLASSES:
        num_classes = _num_classes(name, np.concatenate([train_y, test_y]), num_classes)
    else:
        allowed = f"absent, as the task {task} has no classes"
        require(num_classes is None, "num_classes", num_classes, allowed)
        require(len(class_names) == 0, "class_names", class_names, allowed)
        like = f"that of the training labels, {train_y.shape}"
        what = f"Shape of the test labels of data set {name!r}"
        require(test_y.shape[1:] == train_y.shape[1:], what, test_y.shape, like)
        num_classes = 1
    count, fits = f"{len(class_names)} names", len(class_names) in (0, num_classes)
    require(fits, f"class_names of data set {name!r}", count, f"{num_classes} names or none")
    for one in class_names:
        readable = one.encode("utf-8", "replace").decode() == one
        require(readable, f"class_names of data set {name!r}", one, "text that UTF-8 can say")
    if input_scaling is None:
        pixels = train_x.dtype == np.uint8 and (
            train_x.ndim > 2 or max(x.max(initial=0) for x in (train_x, test_x)) > 1
        )
        input_scaling = "half" if pixels else "raw"
    return Dataset(
        name=name,
        train_x=train_x,
        train_y=train_y,
        test_x=test_x,
        test_y=test_y,
        num_classes=num_classes,
        input_scaling=input_scaling,
        vocab_size=vocab_size,
        class_names=tuple(class_names),
        note=note,
        task=task,
        columns=checked_columns(name, columns or {}, len(train_y) + len(test_y)),
        vocabulary=vocabulary,
        feature_names=features,
    )


def _samples(what: str, x, vocab_size: int | None) -> np.ndarray:
    require_unmasked(what, x)
    given, x = x, as_array(x)
    if x.shape == () and is_list(given):
        shapes = sorted({as_array(one).shape for one in given})
        require(False, f"The {what}", f"samples of shapes {shapes[:5]}", "samples of one shape")
    require(x.shape != (), f"The {what}", given, "samples of one shape")
    if x.dtype.kind == "U" and x.size == len(x):
        way = "load_dataset('text_csv:FILE.csv') makes token ids of a file of labels and texts"
        raise InputError(f"The {what} are texts: {way}.")
    if vocab_size is not None:
        return _tokens(what, x, vocab_size)
    if hasattr(given, "iloc") and hasattr(given, "columns"):  # of pandas
        check_frame(what, given)
    if x.dtype.kind == "b" or (x.dtype.kind in "iu" and hasattr(given, "columns")):
        x = x.astype(np.float32)
    allowed = x.dtype == np.uint8 or x.dtype.kind == "f"
    if not allowed:
        types, kind = "uint8 or float", x.dtype.kind
        if kind in "iuU" and x.ndim <= 2:
            types += " (token ids need vocab_size, or --data_option=vocab_size=V)"
        if kind in "iu":
            types += ", by astype('uint8') for images and astype('float32') for numbers"
        if kind in "UO":
            types += ", without text, dates and missing values"
        raise refused(f"Type of the {what}", str(x.dtype), types)
    require(x.ndim >= 2, f"Shape of the {what}", x.shape, "[n, d], [n, h, w] or [n, h, w, c]")
    require(0 not in x.shape[1:], f"Shape of the {what}", x.shape, "without an empty axis")
    # Sides that differ more may be a signal's time and its channels, which are the last axis.
    low, high = sorted(x.shape[-2:])
    most = {1: low, 3: 2 * low}.get(x.shape[1], 0)
    first = x.ndim == 4 and 4 < low <= high <= most
    allowed = "[n, h, w, c], with the channels last by np.moveaxis(x, 1, -1)"
    require(not first, f"Shape of the {what}", x.shape, allowed)
    if x.dtype != np.uint8:
        x = finite_float32(what, x)
    return x[..., None] if x.ndim == 3 else x


def _check_range(name: str, train_x: np.ndarray, test_x: np.ndarray) -> None:
    """Refuse images, as such or as rows, of which one split is in 0..1 and the other in 0..255."""
    if train_x.ndim == 3 or train_x.dtype == np.uint8 or not len(test_x):
        return
    low, high = sorted(float(np.abs(x).max(initial=0)) for x in (train_x, test_x))
    if low <= 1 and high > (10 if train_x.ndim == 4 else 100):
        raise InputError(
            f"Training and test samples of data set {name!r} reach {low:g} in one split and "
            f"{high:g} in the other: scale both alike."
        )


def _tokens(what: str, x: np.ndarray, vocab_size: int) -> np.ndarray:
    require(x.dtype.kind in "iu", f"Type of the {what}", str(x.dtype), "integer token ids")
    require(x.ndim == 2 and x.shape[1] > 0, f"Shape of the {what}", x.shape, "[n, length]")
    low, high = (int(x.min()), int(x.max())) if x.size else (0, 0)
    inside = low >= 0 and high < vocab_size
    require(inside, f"Token ids of the {what}", f"{low}..{high}", f"in 0..{vocab_size - 1}")
    return x.astype(np.int32, copy=False)


def _num_classes(name: str, labels: np.ndarray, count: int | None) -> int:
    top = int(labels.max())
    if count is not None:
        require_whole("num_classes", count, 1, MAX_CLASSES)
        require(top < count, f"Labels of data set {name!r}", f"0..{top}", f"in 0..{count - 1}")
        return count
    present = np.unique(labels)
    if len(present) <= top:
        first = int(np.flatnonzero(present != np.arange(len(present)))[0])
        raise InputError(
            f"Labels of data set {name!r} must be 0..C-1, but label {first} never occurs while "
            f"label {top} does: renumber them from 0, or give num_classes, as "
            "dataset_from_arrays takes it."
        )
    return top + 1
