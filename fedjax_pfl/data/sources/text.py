"""Texts to token ids: AG News and any CSV file of labelled texts.

The pipeline is that of PFLlib's AG News (torchtext's "basic_english"): lower case, punctuation as
tokens of its own, a vocabulary of the most frequent tokens of the training texts, a fixed length.
"""

import collections
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedjax_pfl.data.columns import column_names
from fedjax_pfl.data.csv_files import check_header, read_rows
from fedjax_pfl.data.dataset import MAX_VOCABULARY, Dataset, dataset_from_arrays
from fedjax_pfl.data.limits import require_memory
from fedjax_pfl.data.places import folders, not_found
from fedjax_pfl.utils.errors import InputError, require, unknown_name

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


class Columns(NamedTuple):
    """Names of a CSV file's columns as given: of the label, the text, and those to keep."""

    label: str | None = None
    text: str | None = None
    kept: str = ""


USUAL = Columns()


class _Texts(NamedTuple):
    path: Path
    labels: list[str]
    texts: list[str]
    kept: dict[str, list[str]]


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
    label_column: str | None = None,
    text_column: str | None = None,
    id_columns: str = "",
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
      label_column, text_column: names in the header; None takes `label`, and `text` or all others.
      id_columns: columns to keep beside the texts, for the rule `by_column`, such as "user".
    """
    columns = Columns(label_column, text_column, id_columns)
    if data_dir is None:
        raise InputError(
            "Data set 'text_csv' needs the path of a file or folder: write text_csv:PATH or set "
            "data_dir."
        )
    test = None
    if data_dir.is_dir():
        train, test = (
            _read(data_dir / f"{split}.csv", None, columns) for split in ("train", "test")
        )
        if train is None:
            raise InputError(f"{data_dir} lacks train.csv (label, text).")
    else:
        train = _read(data_dir, None, columns)
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
    kept = {
        column: values + ([] if test is None else test.kept[column])
        for column, values in train.kept.items()
    }
    return dataset_from_arrays(
        name,
        *arrays,
        num_classes=len(values),
        vocab_size=len(vocabulary) + 2,
        class_names=class_names,
        note=note,
        columns=kept,
    )


def _read(path: Path, columns: int | None = None, options: Columns = USUAL) -> _Texts | None:
    """Labels and texts of a CSV file, None where there is none; rows have `columns` cells each."""
    if not path.exists():
        return None
    rows = read_rows(path, columns, " (label first)")
    if not rows:
        raise InputError(f"{path} holds no texts.")
    label, text, kept = 0, [i for i in range(len(rows[0])) if i != 0], {}
    header = [cell.strip().lower() for cell in rows[0]]
    named_label = (options.label or "label").lower()
    if columns is None and (named_label in header or options != USUAL):
        check_header(path, header)
        rows = rows[1:]
        label, text, kept = _places(path, header, named_label, options)
    if not rows:
        raise InputError(f"{path} holds no texts below its header.")
    labels = [sys.intern(row[label].strip()) for row in rows]
    if "" in labels:
        raise InputError(f"{path} has no label in row {labels.index('') + 1}.")
    texts = [" ".join(row[i] for i in text) for row in rows]
    return _Texts(path, labels, texts, {name: [row[i] for row in rows] for name, i in kept.items()})


def _places(
    path: Path, header: list[str], label: str, options: Columns
) -> tuple[int, list[int], dict[str, int]]:
    """Where the label is, the text (one column or more), and the columns that are kept."""
    kept = {name: header.index(name) for name in column_names(options.kept.lower(), header, path)}
    for name in filter(None, (label, (options.text or "").lower())):
        if name not in header:
            raise unknown_name(f"column of {path}:", name, header)
        require(name not in kept, "id_columns", options.kept, f"columns other than {name!r}")
    if options.text or "text" in header:
        text = [header.index((options.text or "text").lower())]
    else:
        text = [i for i in range(len(header)) if i not in kept.values()]
    at = header.index(label)
    return at, [i for i in text if i != at], kept
