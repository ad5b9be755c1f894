"""Vocabularies of texts, which are those of the training samples.

A reader gives every token of its files an id, in alphabetical order. Which of them a model knows,
and by which ids, is decided where the training samples are known: `token_ids`.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import numpy as np

PAD, UNKNOWN, RESERVED = 0, 1, 2
_PUNCTUATION = str.maketrans({**{mark: f" {mark} " for mark in "'.,()!?"}, ";": " ", ":": " "})


class Vocabulary(NamedTuple):
    """Limits of a vocabulary.

    Attributes:
      max_tokens: largest number of ids, those of padding and of unknown tokens included.
      min_frequency: tokens that occur less often in the training samples are unknown.
    """

    max_tokens: int
    min_frequency: int


def tokenize(text: str) -> list[str]:
    """Split an English text into lower-cased words and punctuation marks.

    Quotation marks, colons, semicolons and <br /> are dropped; ' . , ( ) ! ? become tokens.
    """
    plain = text.lower().replace('"', "").replace("<br />", " ")
    return plain.translate(_PUNCTUATION).split()


def encode(tokens: Iterable[list[str]], vocabulary: Mapping[str, int], length: int) -> np.ndarray:
    """Return token ids, int32 [texts, length]: the first tokens, padded with 0 at the end."""
    rows = list(tokens)
    ids = np.zeros((len(rows), length), np.int32)
    for row, text in zip(ids, rows, strict=True):
        text = text[:length]
        row[: len(text)] = [vocabulary.get(token, UNKNOWN) for token in text]
    return ids


def token_ids(
    limits: Vocabulary,
    stored: int,
    texts: Callable[[np.ndarray], np.ndarray],
    rows: np.ndarray,
) -> np.ndarray:
    """Return the model's id of each stored id, int32 [stored].

    The most frequent tokens of the training samples have the ids from 2 on, those of one frequency
    in the order of their stored ids. All others are 1, and padding stays 0.

    Args:
      limits: which tokens may have an id.
      stored: number of stored ids.
      texts: returns stored ids [k, length] at pool indices [k]; -1 is ignored.
      rows: pool indices of the training samples; those that occur twice count once.
    """
    counts = np.zeros(stored, np.int64)
    rows = np.unique(rows)
    for start in range(0, len(rows), 4096):
        ids = texts(rows[start : start + 4096]).reshape(-1)
        counts += np.bincount(ids[ids >= 0], minlength=stored)
    counts[:RESERVED] = 0
    ranked = np.argsort(-counts, kind="stable")
    frequent = ranked[counts[ranked] >= max(limits.min_frequency, 1)]
    frequent = frequent[: limits.max_tokens - RESERVED]
    known = np.full(stored, UNKNOWN, np.int32)
    known[PAD] = PAD
    known[frequent] = RESERVED + np.arange(len(frequent))
    return known


def whole_texts(samples: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return texts with each token once: of next tokens, the first one and all labels."""
    if labels.ndim == 1:
        return samples
    return np.concatenate([samples[:, :1], labels], axis=1)
