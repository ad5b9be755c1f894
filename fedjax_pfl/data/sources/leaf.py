"""LEAF's JSON (Caldas et al., 2018): FEMNIST, Shakespeare, and any other vectors of numbers.

A folder has `train/*.json` and `test/*.json`, each {"users": [...], "num_samples": [...],
"user_data": {user: {"x": [...], "y": [...]}}}.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedjax_pfl.data.dataset import Dataset, dataset_from_arrays
from fedjax_pfl.data.files import read_json
from fedjax_pfl.data.labels import CLASSES, NEXT
from fedjax_pfl.data.limits import require_memory
from fedjax_pfl.data.sources.source_registry import register_dataset
from fedjax_pfl.data.sources.splits import split_of, unused_note
from fedjax_pfl.utils.conversions import as_array
from fedjax_pfl.utils.errors import InputError, require, shown

# LEAF's letters, in the order of its classes; it counts them from 0, here the first two ids are
# padding and any other letter.
LETTERS = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
OTHER, RESERVED = 1, 2
_NUMBER = {letter: number for number, letter in enumerate(LETTERS)}
FEMNIST = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
SIDE = 28  # pixels of an image of FEMNIST
COLUMN = "user"
TASKS = (CLASSES, NEXT)


class _Part(NamedTuple):
    x: np.ndarray
    y: np.ndarray
    users: np.ndarray


def leaf_files(folder: Path) -> Path | None:
    """Return LEAF's folder of `train` and `test`: `folder` or its folder `data`; else None."""
    for place in (folder, folder / "data"):
        if any((place / "train").glob("*.json")) and not (place / "config.json").exists():
            return place
    return None


@register_dataset(
    "leaf",
    "a folder that LEAF wrote, leaf:PATH, such as FEMNIST or Shakespeare, by user",
    natural=True,
    needs="the folder that LEAF wrote",
)
def load_leaf(data_dir: Path, task: str = CLASSES) -> Dataset:
    """LEAF's train/*.json and test/*.json; the column `user` contains each sample's user.

    Samples of 784 bytes divided by 255 are images 28x28 (FEMNIST), texts of one length whose label
    is a letter are the ids of their letters (Shakespeare: the next letter is the class), other
    numbers stay vectors. Files are read in the order of their names.

    Args:
      data_dir: the folder, or one with these two in its folder `data`.
      task: "classification", or "next_token" for texts: each letter's label is the next letter.

    Raises:
      InputError: no such folder, files of another form, such as names of pictures (CelebA) or
        texts of words (Sent140, Reddit), or a task that the samples don't fit.
    """
    require(task in TASKS, "task of LEAF's data", task, " or ".join(map(repr, TASKS)))
    folder = leaf_files(data_dir)
    if folder is None:
        raise InputError(f"{data_dir} has no train/*.json, as LEAF's preprocess.sh writes them.")
    train, test = (_read(folder / split) for split in ("train", "test"))
    assert train is not None  # as `leaf_files` found some
    parts = [train] if test is None else [train, test]
    for part in parts[1:]:
        same = (part.x.dtype.kind, part.x.shape[1:]) == (train.x.dtype.kind, train.x.shape[1:])
        require(same, f"Samples in {folder / 'test'}", part.x.shape[1:], "as those for training")
    beside = (place for place in sorted(folder.iterdir()) if place.name not in ("train", "test"))
    unused = [place.name for place in beside if split_of(place.name) and any(place.glob("*.json"))]
    place = folder.resolve()
    name = (place.parent if place.name == "data" else place).name  # as LEAF's folders are laid out
    about: dict[str, Any] = {}
    xs, ys = [part.x for part in parts], [part.y for part in parts]
    texts = train.x.dtype.kind == "i"
    if task == NEXT:
        require(texts, f"task of {folder}", task, f"{CLASSES!r}, as its samples are not texts")
        about = {"vocab_size": RESERVED + len(LETTERS), "task": task}
        ys = [_shifted(x, y) for x, y in zip(xs, ys, strict=True)]
    elif texts:
        about = {"vocab_size": RESERVED + len(LETTERS), "num_classes": len(LETTERS)}
        about["class_names"] = tuple(LETTERS)
    elif train.x.shape[1:] == (SIDE**2,) and all(_are_pixels(x) for x in xs):
        xs = [np.rint(x * 255).astype(np.uint8).reshape(-1, SIDE, SIDE, 1) for x in xs]
        if max(int(y.max()) for y in ys) < len(FEMNIST):
            about = {"num_classes": len(FEMNIST), "class_names": tuple(FEMNIST)}
    arrays = [array for pair in zip(xs, ys, strict=True) for array in pair]
    users = np.concatenate([part.users for part in parts])
    about["note"] = unused_note(unused)
    return dataset_from_arrays(name, *arrays, columns={COLUMN: users}, **about)


def _shifted(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the id after each letter of texts [n, length]; the classes [n] count from 0."""
    return np.concatenate([x[:, 1:], RESERVED + y[:, None]], axis=1)


def _are_pixels(x: np.ndarray) -> bool:
    """Return whether numbers are bytes divided by 255."""
    inside = bool(np.all((x >= 0) & (x <= 1)))
    return inside and bool(np.all(np.abs(x * 255 - np.rint(x * 255)) < 1e-3))


def _read(folder: Path) -> _Part | None:
    """Return the samples of all files of a folder, or None without files."""
    files = sorted(folder.glob("*.json"))
    xs, ys, users, seen = [], [], [], set()
    for path in files:
        for user, x, y in _users(path):
            what = f"user {user!r:.80} in {path}"
            # A column strips its texts, and NumPy's texts end before their last NUL.
            plain = user == user.strip().rstrip("\0")
            require(plain, f"The {what}", user, "named without spaces at the ends")
            require(user not in seen, f"The {what}", "another one", "listed once")
            seen.add(user)
            samples, labels = _arrays(what, x, y)
            same = not xs or (samples.dtype, samples.shape[1:]) == (xs[0].dtype, xs[0].shape[1:])
            require(same, f"Samples of {what}", samples.shape[1:], "those of the first user's form")
            xs.append(samples)
            ys.append(labels)
            users.append(np.full(len(labels), user))
    if not files:
        return None
    require(len(xs) > 0, f"Users with samples in {folder}", 0, "at least 1")
    require_memory(f"The samples in {folder}", sum(x.nbytes for x in xs))
    return _Part(np.concatenate(xs), np.concatenate(ys), np.concatenate(users))


def _users(path: Path) -> Iterator[tuple[str, list, list]]:
    """Yield (user, samples, labels) of a file, of those with samples."""
    content = read_json(path)
    good = isinstance(content.get("user_data"), dict)
    if not (good and isinstance(content.get("users"), list)):
        raise InputError(f"{path} isn't a file of LEAF's: it has no users with user_data.")
    data = content["user_data"]
    left = data.keys() - {user for user in content["users"] if isinstance(user, str)}
    require(not left, f"users in {path}", f"none of {sorted(left)[:5]}", "all those of user_data")
    for user in content["users"]:
        own: Any = data.get(user) if isinstance(user, str) else None
        lists = isinstance(own, dict) and all(isinstance(own.get(key), list) for key in "xy")
        if not (lists and len(own["x"]) == len(own["y"])):
            raise InputError(
                f"{path} has no samples x and labels y, as many of each, for user {shown(user)}."
            )
        if own["y"]:
            yield user, own["x"], own["y"]


def _arrays(what: str, x: list[Any], y: list[Any]) -> tuple[np.ndarray, np.ndarray]:
    if all(isinstance(one, str) for one in (*x, *y)):
        return _letters(what, x, y)
    samples, labels = as_array(x), as_array(y)
    numbers = samples.dtype.kind in "iuf" and samples.ndim == 2
    integers = labels.ndim == 1 and labels.dtype.kind in "iuf" and bool(np.all(labels % 1 == 0))
    if not (numbers and integers):
        raise InputError(
            f"Samples of {what} must be vectors of numbers with whole labels (FEMNIST, synthetic) "
            f"or texts with a letter as label (Shakespeare), got {shown(x[0])} with {shown(y[0])}."
        )
    return samples.astype(np.float32), labels.astype(np.int64)


def _letters(what: str, x: list[str], y: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """Return ids of the letters, int32 [n, length], and the classes of the next letters."""
    length = len(x[0])
    for text, label in zip(x, y, strict=True):
        fits = len(text) == length > 0 and label in _NUMBER
        if not fits:
            raise InputError(
                f"Samples of {what} must be texts of {length} letters with one of LEAF's "
                f"{len(LETTERS)} letters as label, got {shown(text)} with {shown(label)}."
            )
    ids = np.full((len(x), length), OTHER, np.int32)
    known = np.full(2**8, OTHER, np.int32)
    for letter, number in _NUMBER.items():
        known[ord(letter)] = RESERVED + number
    codes = np.array(x).view(np.int32).reshape(len(x), -1)
    ids[:, : codes.shape[1]] = np.where(codes < len(known), known[np.minimum(codes, 255)], OTHER)
    return ids, np.array([_NUMBER[label] for label in y])
