"""Which files and folders hold training samples, and which hold samples held out for testing."""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

TRAIN = ("train", "training")
TEST = ("test", "testing")
VALIDATION = (
    "val", "valid", "validation", "dev", "eval", "evaluation", "holdout", "heldout",
)  # fmt: skip
GROUPS = (TRAIN, TEST, VALIDATION)


class Splits(NamedTuple):
    """Files or folders, in the order in which they were given.

    Attributes:
      train: of training samples.
      held_out: of test samples; without any, of validation samples.
      unused: all others.
    """

    train: list[Path]
    held_out: list[Path]
    unused: list[Path]

    def every(self) -> list[Path]:
        """Return all of them."""
        return [*self.train, *self.held_out, *self.unused]

    def note(self, what: str = "") -> str:
        """Return a remark that names what is not used, or an empty text."""
        return unused_note([f"{what}{path.name}" for path in self.unused])


def split_of(name: str) -> tuple[str, ...] | None:
    """Return the group of a name such as "Test" or "data_train-0": the one whose word it has."""
    words = set(re.findall("[a-z]+", name.replace("held_out", "heldout").casefold()))
    groups = [group for group in GROUPS if words & {*group}]
    return groups[0] if len(groups) == 1 else None


def splits(places: Iterable[Path], whole: bool = False) -> Splits:
    """Sort files or folders into those for training, for testing, and others.

    Args:
      places: the files or folders.
      whole: their names must be such a word, in any case, as among folders of classes, which may
        have names such as "train station".
    """
    places = list(places)
    groups = [
        None if whole and not place.name.isalpha() else split_of(place.stem) for place in places
    ]
    found = {group: [p for p, own in zip(places, groups, strict=True) if own == group]
             for group in GROUPS}  # fmt: skip
    held_out = found[TEST] or found[VALIDATION]
    unused = [place for place in places if place not in (*found[TRAIN], *held_out)]
    return Splits(found[TRAIN], held_out, unused)


def one_each(files: Splits, endings: Sequence[str]) -> Splits:
    """Keep one file of a split: that with a plain name, then that of the first ending."""

    def rank(path: Path) -> tuple[int, int, str]:
        return len(path.stem), endings.index(path.suffix.casefold()), path.name

    train, held_out = sorted(files.train, key=rank)[:1], sorted(files.held_out, key=rank)[:1]
    unused = [path for path in files.every() if path not in (*train, *held_out)]
    return Splits(train, held_out, unused)


def table_files(place: Path, endings: Sequence[str]) -> Splits:
    """Return the files of a folder, or a single file, with the files that are not used.

    Held-out samples in files with other endings, or beside a single file for training, are among
    those that are not used.
    """
    if not place.is_dir():
        unused = _held_out(place.parent) if split_of(place.stem) == TRAIN else []
        return Splits([place] if place.exists() else [], [], unused)
    inside = sorted(path for path in place.iterdir() if path.suffix.casefold() in endings)
    files = one_each(splits(inside), endings)
    others = [path for path in _held_out(place) if path not in inside]
    return files._replace(unused=[*files.unused, *others])


def _held_out(folder: Path) -> list[Path]:
    """Return the files of a folder whose names are those of held-out samples."""
    return [
        path for path in sorted(folder.glob("*.*")) if split_of(path.stem) in (TEST, VALIDATION)
    ]


def unused_note(names: Sequence[str]) -> str:
    """Return a remark that names what is not used, or an empty text."""
    if not names:
        return ""
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return f"not used: {', '.join(names[:5])}{more}"


def notes(*parts: str) -> str:
    """Join remarks; empty ones are left out."""
    return "; ".join(filter(None, parts))
