"""The two files of a saved result: written whole, verified when read.

`result.json` has the numbers and words, and a digest of everything; `result.npz` has the arrays,
those of a dict under DICT:NAME.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedjax_pfl._version import __version__
from fedjax_pfl.data.whole_files import aside, read_arrays, read_json, require_version, writing
from fedjax_pfl.results.names import COUNTS
from fedjax_pfl.utils.conversions import defined_at
from fedjax_pfl.utils.errors import InputError, shown
from fedjax_pfl.utils.metric_names import ACCURACY, BETTER, Measure

PLAIN, ARRAYS = "result.json", "result.npz"
GROUPS = ("settings", "scores", "clients", "scalars", "matrices")
TUPLES = ("seeds", "blocks", "remarks", "setting_remarks", "measures", "client_names")
DIGEST = "digest"
OLDER = ("0.3",)  # versions whose results can be read
NUMBER = "biuf"  # kinds of NumPy's types


def save(folder: Path, values: Mapping[str, Any]) -> None:
    """Writes the fields of a result.

    Raises:
      InputError: the folder holds one of the two files already.
      OutputError: they can't be written; then neither exists.
    """
    there = [name for name in (PLAIN, ARRAYS) if (folder / name).exists()]
    if there:
        raise InputError(f"{folder} has a {there[0]} already; save to another folder.")
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    arrays, plain = {}, {}
    for name, value in values.items():
        if isinstance(value, np.ndarray):
            arrays[name] = value
        elif name in GROUPS:
            arrays |= {f"{name}:{key}": item for key, item in value.items()}
        else:
            plain[name] = value
    # Files know no bfloat16.
    arrays = {
        name: value.astype(np.float32) if value.dtype.kind == "V" else value
        for name, value in arrays.items()
    }
    plain = json.loads(json.dumps(plain, default=_plain))
    plain["version"] = __version__
    plain[DIGEST] = digest(plain, arrays)
    with aside(folder / ARRAYS) as part, part.open("wb") as file:
        np.savez_compressed(file, **arrays)
    try:
        with aside(folder / PLAIN) as part:
            part.write_text(json.dumps(plain, indent=2) + "\n")
    except BaseException:
        (folder / ARRAYS).unlink(missing_ok=True)
        raise


def load(folder: Path, fields: Mapping[str, bool]) -> dict[str, Any]:
    """Reads what `save` wrote.

    Args:
      folder: with the two files.
      fields: names of the fields, and whether each is needed.

    Raises:
      InputError: no result there, or one that is damaged or of another version.
    """
    try:
        plain, arrays = read_json(folder / PLAIN), read_arrays(folder / ARRAYS)
    except InputError as error:
        known = any(os.path.isfile(folder / name) for name in (PLAIN, ARRAYS))
        more = f" {remedy(folder)}" if known else ""
        raise InputError(f"No saved result can be read from {folder}: {error}{more}") from error
    require_version(folder / PLAIN, plain.get("version"), remedy(folder), OLDER)
    stored = plain.pop(DIGEST, None)
    if stored is None:
        raise damaged(folder / PLAIN, "it has no digest")
    if stored != digest(plain, arrays):
        raise damaged(folder / PLAIN, f"it or {ARRAYS} was changed after it was written")
    del plain["version"]
    values: dict[str, Any] = plain | {group: {} for group in GROUPS}
    for name, value in arrays.items():
        group, colon, key = name.partition(":")
        if colon and group in GROUPS:
            values[group][key] = value
        elif name in GROUPS or name in plain:
            raise damaged(folder / ARRAYS, f"it can't hold an array {shown(name)}")
        else:
            values[name] = value
    missing = [name for name, needed in fields.items() if needed and name not in values]
    other = [name for name in values if name not in fields]
    for names, what in ((missing, "lacks"), (other, "has the unknown")):
        if names:
            raise damaged(
                folder / PLAIN, f"the result {what} {names[0]!r}, perhaps as another version's"
            )
    problem = trouble(values)
    if problem is not None:
        raise damaged(folder / (ARRAYS if problem[0] else PLAIN), problem[1])
    return values | {name: _tuple(values[name]) for name in TUPLES if name in values}


def _tuple(value: Any) -> Any:
    """Lists of JSON, and those in them, as tuples."""
    return tuple(map(_tuple, value)) if isinstance(value, list) else value


def damaged(path: Path, what: str) -> InputError:
    """An `InputError` for a file of a finished run: what is wrong with it, and what to do."""
    return InputError(f"{path} is damaged: {what}. {remedy(path.parent)}")


def remedy(folder: Path) -> str:
    """The remedy for an algorithm's folder that can't be read."""
    return f"Delete the folder {folder} and give its run's command again."


def digest(plain: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> str:
    """SHA-256 of all names, values, types, shapes and bytes."""
    total = hashlib.sha256(json.dumps(plain, sort_keys=True).encode())
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        total.update(f"{name} {array.dtype} {array.shape}".encode())
        total.update(array.tobytes())
    return total.hexdigest()


def trouble(values: Mapping[str, Any]) -> tuple[bool, str] | None:
    """(whether it is an array, what is wrong), or None where all fields fit each other."""
    found = words_trouble(values)
    return (False, found) if found else next(((True, said) for said in _arrays(values)), None)


def words_trouble(values: Mapping[str, Any]) -> str | None:
    """What is wrong with the fields of `result.json`, or None."""
    checks: dict[str, tuple[Callable[[Any], bool], str]] = {
        "algorithm": (_word, "a name"),
        "hyperparameters": (lambda v: isinstance(v, dict), "an object"),
        "training": (lambda v: isinstance(v, dict), "an object"),
        "seeds": (lambda v: _list(v, is_whole_number) and len(v) > 0, "a list of whole numbers"),
        "num_clients": (lambda v: is_whole_number(v, 1), "a whole number of at least 1"),
        "num_parameters": (is_whole_number, "a whole number"),
        "blocks": (lambda v: _list(v, _word), "a list of names"),
        "item_bytes": (lambda v: is_whole_number(v, 1), "a whole number of at least 1"),
        "compile_seconds": (number, "a number of at least 0"),
        "seconds_per_round": (number, "a number of at least 0"),
        "padding_efficiency": (number, "a number of at least 0"),
        "execution": (_word, "a text"),
        "stopped": (lambda v: v in ("", "patience", "asked"), "patience, asked or nothing"),
        "rounds_asked": (lambda v: v is None or is_whole_number(v, 1), "a whole number, or null"),
        "client_names": (lambda v: _list(v, lambda name: isinstance(name, str)), "a list of names"),
        "remarks": (lambda v: _list(v, _word), "a list of sentences"),
        "setting_remarks": (
            lambda v: _list(v, lambda some: _list(some, _word)),
            "a list of sentences for each setting",
        ),
        "measures": (
            lambda v: _list(v, _measure) and len(v) > 0,
            "a list of [name, direction, whether a fraction, whether it pools]",
        ),
        "flops_per_step": (lambda v: v is None or number(v), "a number of at least 0, or null"),
        "flops_per_forward": (lambda v: v is None or number(v), "a number of at least 0, or null"),
    }
    for name, (fits, wanted) in checks.items():
        if name in values and not fits(values[name]):
            return f"{name} must be {wanted}, and is {shown(values[name])}"
    return None


def is_whole_number(value: Any, low: int = 0) -> bool:
    """Whether it is a whole number of JSON of at least `low`."""
    return isinstance(value, int) and not isinstance(value, bool) and low <= value < 2**63


def number(value: Any) -> bool:
    """Whether it is a number of JSON of at least 0, or NaN."""
    return isinstance(value, int | float) and not isinstance(value, bool) and not value < 0


def _word(value: Any) -> bool:
    return isinstance(value, str) and value != ""


def _measure(value: Any) -> bool:
    kinds = (_word, lambda v: v in BETTER, *[lambda v: isinstance(v, bool)] * 2)
    fits = isinstance(value, list | tuple) and len(value) == len(kinds)
    return fits and all(kind(part) for kind, part in zip(kinds, value, strict=True))


def _list(value: Any, fits: Callable[[Any], bool]) -> bool:
    return isinstance(value, list | tuple) and all(map(fits, value))


def _arrays(values: Mapping[str, Any]):
    """Yields what is wrong with the arrays: shapes first, as all else depends on them."""
    up = values["copies_up"]
    if getattr(up, "ndim", 0) != 5:
        yield f"copies_up must have the axes [S, H, T, N, G], got {_form(up)}"
        return
    seeds, settings, rounds = up.shape[:3]
    clients, blocks = values["num_clients"], len(values["blocks"])
    evaluations, kept = (len_of(values[key]) for key in ("eval_rounds", "matrix_rounds"))
    runs = (len(values["seeds"]), settings)
    shapes = {
        "train_sizes": (clients,),
        "test_sizes": (clients,),
        "client_ids": (clients,),
        "eval_rounds": (evaluations,),
        "matrix_rounds": (kept,),
        "block_sizes": (blocks,),
        "copies_up": (*runs, rounds, clients, blocks),
        "copies_down": (*runs, rounds, clients, blocks),
    }
    groups = {
        "settings": (settings,),
        "scores": (*runs, evaluations, clients),
        "clients": (*runs, rounds, clients),
        "scalars": (*runs, rounds),
    }
    if min(seeds, settings, rounds, evaluations + bool(values.get("stopped"))) < 1:
        yield f"it has no seeds, settings, rounds or scored rounds: copies_up is {_form(up)}"
        return
    if len(values.get("setting_remarks", ())) not in (0, settings):
        yield f"its setting_remarks are not those of {settings} settings"
    if settings > 1 and not values["settings"]:
        yield f"it has {settings} settings without a name"
    for name, shape in shapes.items():
        yield from misfit(name, values[name], shape, "iu")
    for group, shape in groups.items():
        for name, array in values[group].items():
            kinds = NUMBER + ("U" if group == "settings" else "")
            yield from misfit(f"{group}:{name}", array, shape, kinds)
    for name, array in values["matrices"].items():
        yield from misfit_matrix(f"matrices:{name}", array, (*runs, kept), clients)
    yield from _ranges(values, rounds)


def len_of(array: Any) -> int:
    """Entries of the first axis; 0 of what has none."""
    return len(array) if getattr(array, "ndim", 0) else 0


def misfit(name: str, array: Any, shape: tuple[int, ...], kinds: str) -> Iterator[str]:
    """Yields a sentence unless it is an array of that shape, of these kinds of types."""
    fits = isinstance(array, np.ndarray) and array.shape == shape
    if not fits or (array.size and array.dtype.kind not in kinds):  # an empty list has no type
        wanted = "whole numbers" if kinds == "iu" else "numbers"
        yield f"{name} must be {wanted} {list(shape)}, got {_form(array)}"


def misfit_matrix(
    name: str, array: np.ndarray, first: tuple[int, ...], clients: int
) -> Iterator[str]:
    """Yields a sentence unless it is [*first, N or 1, N], or that with groups of layers before."""
    count, wanted = len(first), ", ".join(map(str, first))
    fits = array.ndim in (count + 2, count + 3) and array.dtype.kind in NUMBER
    if not (fits and array.shape[:count] == first and array.shape[-1] == clients):
        yield f"{name} must be [{wanted}, ..., {clients}], got {_form(array)}"
    elif array.shape[-2] not in (1, clients):
        yield f"{name} must have 1 or {clients} receivers, got {_form(array)}"


def _form(value: Any) -> str:
    is_array = isinstance(value, np.ndarray)
    return f"{list(value.shape)} of {value.dtype}" if is_array else shown(value)


def out_of_range(array: np.ndarray, low: float, high: float) -> bool:
    """Whether an entry lies outside low..high; NaN does not."""
    return bool(((array < low) | (array > high)).any())


def unordered(rounds: np.ndarray, last: int) -> bool:
    """Whether these are not ascending rounds in 1..last."""
    return out_of_range(rounds, 1, last) or bool((np.diff(rounds.astype(np.int64)) <= 0).any())


def _ranges(values: Mapping[str, Any], rounds: int):
    for name in ("eval_rounds", "matrix_rounds"):
        if unordered(values[name], rounds):
            yield f"{name} must be ascending rounds in 1..{rounds}"
    for name in ("train_sizes", "test_sizes", "client_ids", "block_sizes"):
        if out_of_range(values[name], 0, np.inf):
            yield f"{name} must be at least 0"
    for name in ("copies_up", "copies_down"):
        if out_of_range(values[name], 0, np.inf):
            yield f"{name} must be at least 0"
    if len(np.unique(values["client_ids"])) < values["num_clients"]:
        yield "client_ids must differ"
    names = values.get("client_names", ())
    if len(set(names)) != len(names) or len(names) not in (0, values["num_clients"]):
        yield f"client_names must be {values['num_clients']} different names"
    measures = (Measure(*one) for one in values.get("measures", (ACCURACY,)))
    fraction = {one.name: one.fraction for one in measures} | {"loss": False}
    for name, scores in values["scores"].items():
        parts = name.split("/")
        if len(parts) != 3 or parts[2] not in fraction:
            *most, last = (f"MODEL/SPLIT/{one}" for one in fraction)
            yield f"scores:{name} must be called {', '.join(most)} or {last}"
        elif fraction[parts[2]] and out_of_range(scores, 0, 1):
            yield f"scores:{name} must be fractions"
    for name in ("participated", "diverged"):
        flags = values["clients"].get(name)
        if flags is None:
            yield f"it lacks clients:{name}"
        elif not np.isin(flags, (0, 1)).all():
            yield f"clients:{name} must be yes or no"
    for name in COUNTS:
        counts = values["clients"].get(name)
        if counts is None:
            continue
        if counts.dtype.kind not in "iu" or out_of_range(counts, 0, np.inf):
            yield f"clients:{name} must be whole numbers of at least 0"


def _plain(value) -> float | str:
    """Values without a JSON type: NumPy's numbers, and functions among hyperparameters, by name."""
    if callable(value):
        return ".".join(defined_at(value))
    return float(value)
