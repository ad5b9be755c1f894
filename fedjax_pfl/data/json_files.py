"""Reads the JSON files that other tools write with their splits."""

import json
from pathlib import Path
from typing import Any

from fedjax_pfl.data.files import read_bytes
from fedjax_pfl.utils.errors import InputError


def read_json(path: Path) -> Any:
    """The content of a file of JSON whose objects name nothing twice.

    Raises:
      InputError: it is missing, or no such file.
    """
    if not path.exists():
        raise InputError(f"No file {path}: give the folder or file that the tool wrote.")
    try:
        return json.loads(read_bytes(path).decode(), object_pairs_hook=_distinct)
    except InputError:
        raise
    except (ValueError, RecursionError) as error:  # the last: brackets without end
        raise InputError(f"{path} can't be read as JSON: {error}") from error


def _distinct(pairs: list[tuple]) -> dict:
    """An object of JSON whose names differ: of equal ones Python would keep the last."""
    content = dict(pairs)
    if len(content) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{twice!r:.100} is there twice")
    return content
