"""Texts to token ids: AG News and any CSV file of labelled texts.

The pipeline is that of PFLlib's AG News (torchtext's "basic_english"): lower case, punctuation as
tokens of its own, a vocabulary of the most frequent tokens of the training texts, a fixed length.
"""

import collections
import contextlib
import csv
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedjax_pfl.data.dataset import MAX_VOCABULARY, Dataset, dataset_from_arrays
from fedjax_pfl.data.files import require_file
from fedjax_pfl.data.limits import require_memory
from fedjax_pfl.data.places import folders, not_found
from fedjax_pfl.errors import InputError, require

PAD, UNKNOWN = 0, 1
_RESERVED = ("<pad>", "<unk>")
_PUNCTUATION = str.maketrans({**{mark: f" {mark} " for mark in "'.,()!?"}, ";": " ", ":": " "})
AG_NEWS_CLASSES = ("World", "Sports", "Business", "Sci/Tech")


def tokenize(text: str) -> list[str]:
    """Lower-cased words and punctuation marks of an English text.

    Quotation marks, colons, semicolons and <br /> are dropped; ' . , ( ) ! ? become tokens.
    """
    plain = text.lower().replace('"', "").replace("<br />", " ")
    return plain.translate(_PUNCTUATION).split()


def build_vocabulary(
    tokens: Iterable[list[str]], max_tokens: int = 32_000, min_frequency: int = 1
) -> dict[str, int]:
    """Ids of the most frequent tokens, from 2 on: 0 is padding and 1 stands for all others.

    Equal frequencies go by the tokens' alphabetical order, so that the same texts in any order
    give the same ids.

    Args:
      tokens: tokenised training texts.
      max_tokens: largest number of ids, the two reserved ones included.
      min_frequency: tokens that occur less often get no id.
    """
    counts = collections.Counter(token for text in tokens for token in text)
    for reserved in _RESERVED:
        counts.pop(reserved, None)
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    kept = [token for token, count in ranked if count >= min_frequency][: max_tokens - 2]
    return {token: number for number, token in enumerate(kept, 2)}


def encode(tokens: Iterable[list[str]], vocabulary: dict[str, int], length: int) -> np.ndarray:
    """Token ids, int32 [texts, length]: the first `length` tokens, padded with 0 at the end."""
    rows = list(tokens)
    ids = np.zeros((len(rows), length), np.int32)
    for row, text in zip(ids, rows, strict=True):
        text = text[:length]
        row[: len(text)] = [vocabulary.get(token, UNKNOWN) for token in text]
    return ids


class _Texts(NamedTuple):
    path: Path
    labels: list[str]
    texts: list[str]


def load_ag_news(
    data_dir: Path | None,
    max_tokens: int = 32_000,
    max_length: int = 200,
    min_frequency: int = 1,
) -> Dataset:
    """AG News (120,000 + 7,600 texts, 4 classes): a folder with train.csv and test.csv.

    A text is its title, a blank and its description. Where train.csv is missing, the texts of
    test.csv are the pool and the vocabulary is theirs; the data set's note says so.

    Args:
      data_dir: the folder, or one with ag_news or ag_news_csv in it.
      max_tokens: largest number of ids (see `build_vocabulary`).
      max_length: number of tokens that a text is cut or padded to.
      min_frequency: tokens that occur less often get no id.
    """
    looked = [*folders("ag_news", data_dir), *([data_dir / "ag_news_csv"] if data_dir else [])]
    for place in looked:
        train, test = (_read(place / f"{split}.csv", 3) for split in ("train", "test"))
        if train or test:
            for part in (train, test):
                _check_ag_news(part)
            note = "for non-commercial research"
            if train is None:
                note += "; train.csv isn't there: the texts of test.csv are the pool"
                train, test = test, None
            options = (max_tokens, max_length, min_frequency)
            return _encoded("ag_news", train, test, AG_NEWS_CLASSES, list("1234"), options, note)
    way = "set data_dir to a folder with train.csv and test.csv (label, title, description)"
    raise not_found("ag_news", looked, [way])


def load_text_csv(
    data_dir: Path | None,
    max_tokens: int = 32_000,
    max_length: int = 200,
    min_frequency: int = 1,
) -> Dataset:
    """Your own labelled texts: one CSV file, or a folder with train.csv (and test.csv).

    Without a header the first column is the label and all others, joined by blanks, are the text.
    A first row with a cell `label` is a header: that column is the label, and the column `text`,
    or all others where there is none, is the text. Labels may be numbers or words; classes are
    the training labels in ascending order.

    Args:
      data_dir: the file or folder, UTF-8.
      max_tokens: largest number of ids (see `build_vocabulary`).
      max_length: number of tokens that a text is cut or padded to.
      min_frequency: tokens that occur less often get no id.
    """
    if data_dir is None:
        raise InputError(
            "Data set 'text_csv' needs the path of a file or folder: write text_csv:PATH or set "
            "data_dir."
        )
    test = None
    if data_dir.is_dir():
        train, test = (_read(data_dir / f"{split}.csv") for split in ("train", "test"))
        if train is None:
            raise InputError(f"{data_dir} lacks train.csv (label, text).")
    else:
        train = _read(data_dir)
        if train is None:
            raise InputError(f"No file {data_dir}: give a CSV file of labels and texts.")
    values = sorted(set(train.labels))
    if all(_is_number(value) for value in values):
        values.sort(key=int)
    options = (max_tokens, max_length, min_frequency)
    return _encoded(data_dir.resolve().stem, train, test, tuple(values), values, options)


def _is_number(value: str) -> bool:
    return re.fullmatch("-?[0-9]{1,100}", value) is not None  # longer ones go by the alphabet


def _check_ag_news(part: _Texts | None) -> None:
    if part is None:
        return
    for i, label in enumerate(part.labels, 1):
        if label not in ("1", "2", "3", "4"):
            raise InputError(f"Labels of {part.path} must be 1..4, got {label!r:.100} in row {i}.")


def _encoded(name, train, test, class_names, values, options, note="") -> Dataset:
    max_tokens, max_length, min_frequency = options
    limits = {"max_tokens": 3, "max_length": 1, "min_frequency": 1}
    for (option, low), given in zip(limits.items(), options, strict=True):
        fits = type(given) is int and low <= given <= MAX_VOCABULARY
        require(fits, option, given, f"an integer in {low}..{MAX_VOCABULARY}")
    rows = len(train.texts) + (0 if test is None else len(test.texts))
    what = f"{rows:,} texts of {max_length:,} tokens (max_length)"
    require_memory(what, 4 * rows * max_length)
    tokens = [tokenize(text) for text in train.texts]
    vocabulary = build_vocabulary(tokens, max_tokens, min_frequency)
    number = {value: i for i, value in enumerate(values)}
    arrays = [encode(tokens, vocabulary, max_length), np.array([number[v] for v in train.labels])]
    if test is not None:
        strange = [label for label in test.labels if label not in number]
        if strange:
            raise InputError(
                f"{test.path} has the label {strange[0]!r:.100}, which {train.path} lacks."
            )
        arrays += [
            encode(map(tokenize, test.texts), vocabulary, max_length),
            np.array([number[value] for value in test.labels]),
        ]
    return dataset_from_arrays(
        name,
        *arrays,
        num_classes=len(values),
        vocab_size=len(vocabulary) + 2,
        class_names=class_names,
        note=note,
    )


def _read(path: Path, columns: int | None = None) -> _Texts | None:
    """Labels and texts of a CSV file, None where there is none; rows have `columns` cells each."""
    if not path.exists():
        return None
    # Python takes some ten bytes for one in a table of short cells.
    require_memory(f"The texts of {path}", 10 * require_file(path))
    try:
        with path.open(encoding="utf-8-sig", newline="") as file, _long_cells():
            rows = _rows(path, csv.reader(file, strict=True), columns)
    except (csv.Error, UnicodeDecodeError, OSError) as error:
        raise InputError(f"{path} can't be read as a CSV file in UTF-8: {error}") from error
    if not rows:
        raise InputError(f"{path} holds no texts.")
    label, text = 0, [i for i in range(len(rows[0])) if i != 0]
    header = [cell.strip().lower() for cell in rows[0]]
    if columns is None and "label" in header:
        twice = [name for name in dict.fromkeys(header) if name and header.count(name) > 1]
        if twice:
            raise InputError(
                f"{path} has {header.count(twice[0])} columns called {twice[0]!r}: rename all but "
                "one."
            )
        rows = rows[1:]
        label = header.index("label")
        text = [header.index("text")] if "text" in header else range(len(header))
        text = [i for i in text if i != label]
    if not rows:
        raise InputError(f"{path} holds no texts below its header.")
    labels = [sys.intern(row[label].strip()) for row in rows]
    if "" in labels:
        raise InputError(f"{path} has no label in row {labels.index('') + 1}.")
    return _Texts(path, labels, [" ".join(row[i] for i in text) for row in rows])


@contextlib.contextmanager
def _long_cells() -> Iterator[None]:
    """Lets a cell have any length while it lasts: Python's own limit is 131,072 characters."""
    limit = csv.field_size_limit(2**31 - 1)
    try:
        yield
    finally:
        csv.field_size_limit(limit)


def _rows(path: Path, reader, columns: int | None) -> list[list[str]]:
    rows = []
    for row in reader:
        if not row:
            continue  # an empty line
        wanted = columns or (len(rows[0]) if rows else max(len(row), 2))
        if len(row) != wanted:
            raise InputError(
                f"{path} must have {wanted} columns (label first) in every row, got {len(row)} in "
                f"the row that ends in line {reader.line_num}."
            )
        rows.append(row)
    return rows
