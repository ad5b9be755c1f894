"""Presets: the flagfiles of this package, by names such as "feddwa/table1_practical1_cifar10".

Flagfiles that others include are in folders `parts`; they have names too, but are not listed.
"""

import textwrap
from functools import cache
from pathlib import Path

import fedjax_pfl as pfl
from fedjax_pfl.utils import name_matching

from .start import called

FOLDER = Path(__file__).parents[1] / "presets"
STUDIES = "study/"


@cache
def names() -> tuple[str, ...]:
    """Return the names of all presets and of the parts that they include."""
    paths = (path.relative_to(FOLDER).with_suffix("") for path in FOLDER.rglob("*.flags"))
    return tuple(sorted(path.as_posix() for path in paths))


def complete_presets() -> list[str]:
    """Return the names of presets of runs, without parts."""
    complete = [n for n in names() if "/parts/" not in n and not n.startswith(STUDIES)]
    return sorted(complete, key=lambda name: ("/" in name, name))


def studies() -> list[str]:
    """Return the names of presets of studies, which a run does not take."""
    return [name for name in names() if "/parts/" not in name and name.startswith(STUDIES)]


def file(name: str) -> Path:
    """Return the flagfile of a preset.

    Raises:
      InputError: there is none of that name.
    """
    name = name_matching.canonical_name(name, names(), {})
    if name not in names():
        raise pfl.core.unknown_name(
            "preset", name, [*complete_presets(), *studies()], listed=f"{called('run')} --list"
        )
    return FOLDER / f"{name}.flags"


def catalogue() -> list[str]:
    """Return lines with all presets by folder."""
    folders: dict[str, list[str]] = {}
    for name in complete_presets():
        folder, slash, own = name.rpartition("/")
        folders.setdefault(folder + slash, []).append(own)
    lines = []
    for folder, own in folders.items():
        lines += textwrap.wrap(", ".join(own), 78, initial_indent=f"  {folder:10} ",
                               subsequent_indent=" " * 13)  # fmt: skip
    return lines
