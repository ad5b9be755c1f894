"""The code that a run's numbers come from: what records say of it, and what happens if it changes.

Changes of the package's files or of JAX may change roundings, so a run goes on with a warning. A
changed revision, or a changed file of the user's own, makes other numbers: the run is refused
unless --accept_changed_code says otherwise, and its rows are remarked then.
"""

import hashlib
import importlib.metadata
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import fedjax_pfl as pfl

from . import identity

MADE_WITH = "made_with"  # of the record: the package and JAX, an entry for each that worked on it
ACCEPTED = "accepted_changes"  # of the record: by entry, how it changed
FLAG = "--accept_changed_code"
FOLDERS = (Path(__file__).parents[1], Path(pfl.__file__).parent)


@cache
def package() -> str:
    """Digest of the Python files of the package and its commands."""
    total = hashlib.sha256()
    for folder in FOLDERS:
        for path in sorted(folder.rglob("*.py")):
            content = hashlib.sha256(path.read_bytes()).hexdigest()
            total.update(f"{path.relative_to(folder).as_posix()} {content}\n".encode())
    return total.hexdigest()[:16]


def made_with() -> dict[str, str]:
    """The package's code and the versions of JAX that this process has."""
    versions = {name: importlib.metadata.version(name) for name in ("jax", "jaxlib")}
    return {"fedjax_pfl": pfl.__version__, "code of fedjax_pfl": package(), **versions}


def is_code(name: str) -> bool:
    """Whether an entry of a run's identity says what code it has."""
    return name == "import_file" or name.endswith(".revision") or ".revision of " in name


def taken_over(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
    """A run's identity with the code that there is now."""
    kept = {name: value for name, value in before.items() if not is_code(name)}
    return kept | {name: value for name, value in now.items() if is_code(name)}


def changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, str]:
    """How the code of a run has changed, by entry; an algorithm that is new has none."""
    names = {name for name in before if is_code(name)} | {"import_file"}
    said = {
        name: identity.difference(_only(before, name), _only(now, name)) for name in sorted(names)
    }
    return {name: text for name, text in said.items() if text}


def _only(entries: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {name: entries[name]} if name in entries else {}


def history(record: Mapping[str, Any], accepted: Mapping[str, str]) -> dict[str, Any]:
    """What a folder's next record says of its code, from its last one ({} if there is none)."""
    states, now = record.get(MADE_WITH, []), made_with()
    states = states if states and states[-1] == now else [*states, now]
    known = {**record.get(ACCEPTED, {})}
    for name, said in accepted.items():
        known[name] = f"{known[name]}; then {said}" if name in known else said
    return {MADE_WITH: states, **({ACCEPTED: known} if known else {})}


def warn(output: Path, record: Mapping[str, Any]) -> None:
    """Says in a sentence that a folder was begun with another package's code or another JAX."""
    states = record.get(MADE_WITH)
    changed = identity.difference(states[-1], made_with()) if states else ""
    if changed:
        print(
            f"warning: {output} goes on with other code, so that its numbers may differ slightly "
            f"from those of one run: {changed.replace('--', '')}.",
            file=sys.stderr,
        )


def remarks(record: Mapping[str, Any], algorithm: str) -> list[str]:
    """Remarks on the row of an algorithm that was simulated in a folder of that record."""
    known = identity.of_algorithm(record.get(ACCEPTED, {}), algorithm)
    return [f"code changed while the run was made: {said}" for said in known.values()]
