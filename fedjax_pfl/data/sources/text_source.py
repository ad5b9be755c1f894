"""Texts as token ids: AG News and any CSV file of labelled texts.

The pipeline is that of PFLlib's AG News (torchtext's "basic_english"): lower case, punctuation
marks as tokens, a fixed length. The vocabulary is that of the clients' training samples, see
`fedjax_pfl.data.vocabulary`.
"""

import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedjax_pfl.data.columns import Words, check_words, column_names
from fedjax_pfl.data.csv_files import check_header, read_rows
from fedjax_pfl.data.dataset import MAX_VOCABULARY, Dataset, dataset_from_arrays
from fedjax_pfl.data.labels import CLASSES, NEXT
from fedjax_pfl.data.limits import require_memory
from fedjax_pfl.data.sources.source_registry import folders, not_found, register_dataset
from fedjax_pfl.data.sources.splits import notes, table_files, unused_note
from fedjax_pfl.data.tables import nameless
from fedjax_pfl.data.vocabulary import PAD, RESERVED, Vocabulary, encode, tokenize
from fedjax_pfl.utils.errors import InputError, require, require_name, require_whole

_RESERVED = ("<pad>", "<unk>")
_MANY = 10  # rows, at least, whose labels should repeat
AG_NEWS_CLASSES = ("World", "Sports", "Business", "Sci/Tech")


class _Texts(NamedTuple):
    path: Path
    labels: list[str]
    texts: list[str]
    columns: dict[str, list[str]]
    left: list[str]
    read: list[str]  # the texts' columns in a header
    cells: int | None  # of a row without a header


@register_dataset("ag_news", "127,600 news texts of 4 classes: train.csv and test.csv")
def load_ag_news(
    data_dir: Path | None,
    max_tokens: int = 32_000,
    max_length: int = 200,
    min_frequency: int = 1,
    task: str = CLASSES,
) -> Dataset:
    """AG News (120,000 + 7,600 texts, 4 classes): a folder with train.csv and test.csv.

    A text is its title, a blank and its description. Without train.csv, the texts of test.csv are
    the pool, as noted in the data set.

    Args:
      data_dir: the folder, or one with ag_news or ag_news_csv in it.
      max_tokens: largest number of ids, those of padding and unknown tokens included.
      max_length: number of tokens that a text is cut or padded to.
      min_frequency: tokens that occur less often in the training samples get no id.
      task: "classification", or "next_token": each token's label is the next one, and the classes
        are the column `label`.
    """
    places = folders(data_dir, "ag_news", "ag_news_csv")
    for place in places:
        files = [place / f"{split}.csv" for split in ("train", "test")]
        parts = [_read(path, 3) for path in files if path.exists()]
        for part in parts:
            for i, label in enumerate(part.labels, 1):
                if label not in ("1", "2", "3", "4"):
                    raise InputError(
                        f"Labels of {part.path} must be 1..4, got {label!r:.100} in row {i}."
                    )
        others = [path for path in table_files(place, (".csv",)).every() if path not in files]
        note = notes("for non-commercial research", unused_note([path.name for path in others]))
        if not files[0].exists():
            note += "; train.csv isn't there: the texts of test.csv are the pool"
        if parts:
            options = (max_tokens, max_length, min_frequency, task)
            return _encoded("ag_news", parts, AG_NEWS_CLASSES, list("1234"), options, note)
    way = "set data_dir to a folder with train.csv and test.csv (label, title, description)"
    raise not_found("ag_news", places, way)


@register_dataset(
    "text_csv",
    "your own texts, text_csv:PATH of a CSV file or folder",
    needs="the path of a file or folder",
)
def load_text_csv(
    data_dir: Path,
    max_tokens: int = 32_000,
    max_length: int = 200,
    min_frequency: int = 1,
    label_column: str | None = None,
    text_column: str | None = None,
    id_columns: str = "",
    task: str = CLASSES,
) -> Dataset:
    """Your own labelled texts: one CSV file, or a folder with train.csv (and test.csv).

    Without a test file that of validation has the test samples; the data set's note names files
    that are not used.

    Without a header the first column is the label and all others, joined by blanks, are the text.
    A first row with a cell `label` is a header: that column is the label, and the column `text`,
    or all others without such a column, is the text. Labels may be numbers or words; classes are
    the training labels in ascending order.

    Args:
      data_dir: the file or folder, UTF-8.
      max_tokens: largest number of ids, those of padding and unknown tokens included.
      max_length: number of tokens that a text is cut or padded to.
      min_frequency: tokens that occur less often in the training samples get no id.
      label_column: name in the header; None takes `label`.
      text_column: name in the header; None takes `text`, or all others.
      id_columns: columns for the rule `by_column`, such as "user".
      task: "classification", or "next_token": each token's label is the next one, and the classes
        are the column `label`.
    """
    names = (label_column, text_column, id_columns)
    files = table_files(data_dir, (".csv",))
    if not files.train:
        raise InputError(
            f"{data_dir} lacks train.csv (label, text)."
            if data_dir.is_dir()
            else f"No file {data_dir}: give a CSV file of labels and texts."
        )
    first = _read(files.train[0], names=names)
    parts = [first, *(_read(path, first.cells, names, first.read) for path in files.held_out)]
    values, count = sorted(set(first.labels)), len(first.labels)
    # Three words a cell, at most, whose label no other row has.
    short = len(first.texts[0].split()) <= 3 * ((first.cells or 0) - 1)
    guess = first.cells and task == CLASSES and count >= _MANY
    many = len(values) > count / 2
    alone = first.labels.count(first.labels[0]) == 1 and not first.labels[0].isdecimal()
    if guess and short and alone and not many:
        raise InputError(
            f"The first row of {first.path} looks like a header, as no other row has the label "
            f"{first.labels[0]!r:.100}: give label_column, or write the header label,text above it."
        )
    if guess and many:
        raise InputError(
            f"{first.path} has {len(values):,} different labels in {count:,} rows: label_column "
            "names the labels' column in its header."
        )
    # Longer numbers, which Python doesn't read, are in alphabetical order.
    if all(re.fullmatch("-?[0-9]{1,100}", value) for value in values):
        values.sort(key=int)
    options = (max_tokens, max_length, min_frequency, task)
    name = data_dir.resolve().stem
    left = [f"without the nameless column {column!r}" for column in first.left]
    note = notes(*left, files.note())
    return _encoded(name, parts, tuple(values), values, options, note)


def _encoded(name, parts: list[_Texts], class_names, values, options, note="") -> Dataset:
    *sizes, task = options
    max_tokens, max_length, min_frequency = sizes
    require(task in (CLASSES, NEXT), "task of texts", task, f"{CLASSES!r} or {NEXT!r}")
    limits = {"max_tokens": 3, "max_length": 1, "min_frequency": 1}
    for (option, low), value in zip(limits.items(), sizes, strict=True):
        require_whole(option, value, low, MAX_VOCABULARY)
    rows = sum(len(part.texts) for part in parts)
    what = f"{rows:,} texts of {max_length:,} tokens (max_length)"
    require_memory(what, 4 * rows * max_length)
    tokens = [[tokenize(text) for text in part.texts] for part in parts]
    known = {token for texts in tokens for text in texts for token in text} - {*_RESERVED}
    vocabulary = {token: number for number, token in enumerate(sorted(known), RESERVED)}
    number = {value: i for i, value in enumerate(values)}
    arrays = []
    for part, words in zip(parts, tokens, strict=True):
        unknown = [label for label in part.labels if label not in number]
        if unknown:
            raise InputError(
                f"{part.path} has the label {unknown[0]!r:.100}, which {parts[0].path} lacks."
            )
        if task == NEXT:
            ids = encode(words, vocabulary, max_length + 1)
            arrays += [ids[:, :-1], np.where(ids[:, 1:] == PAD, -1, ids[:, 1:])]
            continue
        arrays.append(encode(words, vocabulary, max_length))
        arrays.append(np.array([number[label] for label in part.labels]))
    columns = {column: [value for part in parts for value in part.columns[column]]
               for column in parts[0].columns}  # fmt: skip
    about: dict[str, Any] = {"num_classes": len(values), "class_names": class_names}
    if task == NEXT:
        classes = [class_names[number[label]] for part in parts for label in part.labels]
        columns, about = {"label": classes, **columns}, {"task": task}
    dataset = dataset_from_arrays(
        name, *arrays, vocab_size=len(vocabulary) + RESERVED, note=note, columns=columns,
        vocabulary=Vocabulary(max_tokens, min_frequency), **about,
    )  # fmt: skip
    return replace(dataset, words=vocabulary)


def _read(
    path: Path,
    columns: int | None = None,
    names: tuple[str | None, str | None, str] | None = None,
    known: Sequence[str] = (),
) -> _Texts:
    """Return labels and texts of a CSV file.

    Args:
      path: the file.
      columns: cells of every row; None for as many as the first has.
      names: in a header: the label's column, the text's, and those to keep, where given.
      known: columns of the text in the training file's header.
    """
    rows = read_rows(path, columns, " (label first)")
    if not rows:
        raise InputError(f"{path} holds no texts.")
    header = [cell.strip().lower() for cell in rows[0]]
    label, text, kept, left = 0, list(range(1, len(header))), {}, []
    read = []
    if names and ("label" in header or any(names) or known):
        check_header(path, header)
        rows = rows[1:]
        label, text, kept = _places(path, header, *names)
        for name in known:
            require_name(f"column of {path}:", name, header)
        text = list(map(header.index, known)) or text
        read = [header[i] for i in text]
        left = [name for name in nameless(header) if name not in kept]
    if not rows:
        raise InputError(f"{path} holds no texts below its header.")
    labels = [sys.intern(row[label].strip()) for row in rows]
    check_words(f"The label of {path}", Words(*np.unique(labels, return_inverse=True)))
    texts = [" ".join(row[i] for i in text) for row in rows]
    columns_kept = {name: [row[i] for row in rows] for name, i in kept.items()}
    return _Texts(path, labels, texts, columns_kept, left, read, None if read else len(header))


def _places(
    path: Path, header: list[str], label: str | None, text: str | None, id_columns: str
) -> tuple[int, list[int], dict[str, int]]:
    """Return the indices of the label's, the text's (one or more) and the other kept columns."""
    label, text = (label or "label").lower(), (text or "").lower()
    columns = {name: header.index(name) for name in column_names(id_columns.lower(), header, path)}
    for name in filter(None, (label, text)):
        require_name(f"column of {path}:", name, header)
        require(name not in columns, "id_columns", id_columns, f"columns other than {name!r}")
    at = header.index(label)
    if text or "text" in header:
        texts = [header.index(text or "text")]
    else:
        unnamed = nameless(header)
        texts = [
            i for i, name in enumerate(header) if name not in unnamed and i not in columns.values()
        ]
    return at, [i for i in texts if i != at], columns
