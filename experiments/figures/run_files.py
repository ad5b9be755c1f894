"""The files of a finished run's algorithm, read and checked against each other.

`experiments.outputs.run_files` describes them. A file that is damaged, or of another version, is
an `InputError` that names it and the remedy.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedjax_pfl.data.npz import read_arrays
from fedjax_pfl.data.whole_files import read_json, require_version
from fedjax_pfl.results.result_files import OLDER, damaged, remedy
from fedjax_pfl.utils.errors import InputError, shown
from fedjax_pfl.utils.metric_names import ACCURACY, BETTER, Measure

CONFIG, SUMMARY, CLIENTS, MATRICES = "config.json", "summary.json", "clients.npz", "mixing.npz"
NUMBER = "biuf"  # kinds of NumPy's types


def read_settings(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """(content of `config.json`, of `summary.json`).

    Raises:
      InputError: they can't be read, or aren't as `experiments.run` writes them.
    """
    found = []
    for name, troubles in ((CONFIG, _config_troubles), (SUMMARY, _summary_troubles)):
        try:
            content = read_json(folder / name)
        except InputError as error:
            raise InputError(f"{folder} is no finished run: {error} {remedy(folder)}") from error
        if name == CONFIG:
            _require_version(folder, content)
        for said in troubles(content):
            raise damaged(folder / name, said)
        found.append(content)
    return tuple(found)


def _require_version(folder: Path, config: Mapping[str, Any]) -> None:
    versions = config.get("versions")
    if isinstance(versions, dict) and "fedjax_pfl" in versions:
        require_version(folder / CONFIG, versions["fedjax_pfl"], remedy(folder), OLDER)


def _config_troubles(config: Mapping[str, Any]) -> Iterator[str]:
    yield from _wrong(config, "algorithm", str)
    yield from _wrong(config, "hyperparameters", dict)
    if "training" in config:
        yield from _wrong(config, "training", dict)
    yield from _wrong(config, "seeds", list)
    yield from _wrong(config, "flags", dict)
    yield from _wrong(config, "partition", dict)
    yield from _wrong(config, "model", dict)
    if not config["seeds"] or not all(map(is_whole_number, config["seeds"])):
        yield f"seeds must be whole numbers, and are {shown(config['seeds'])}"
    for group in ("comparison", "data", "rule"):
        yield from _wrong(config["flags"], group, dict, "flags")
    for group, values in config["flags"].items():
        if not isinstance(values, dict):
            yield f"flags of {shown(group)} must be an object, and are {shown(values)}"
    yield from _wrong(config["flags"]["comparison"], "algorithms", list, "flags of comparison")
    yield from _wrong(config["partition"], "rule", str, "partition")
    yield from _wrong(config["partition"], "options", dict, "partition")
    yield from _wrong(config["model"], "blocks", list, "model")
    names = (*config["model"]["blocks"], *config["flags"]["comparison"]["algorithms"])
    if not all(isinstance(name, str) for name in names):
        yield "the model's blocks and the algorithms must be names"
    for option in ("client_groups", "roles"):
        if not isinstance(config["partition"]["options"].get(option, []), list | None):
            yield f"{option} of the partition must be a list"


def _summary_troubles(summary: Mapping[str, Any]) -> Iterator[str]:
    if not is_whole_number(summary.get("num_clients"), 1):
        yield f"num_clients must be a whole number, and is {shown(summary.get('num_clients'))}"
    if not number(summary.get("seconds_per_round")):
        said = shown(summary.get("seconds_per_round"))
        yield f"seconds_per_round must be a number, and is {said}"
    remarks = summary.get("remarks", [])
    if not (isinstance(remarks, list) and all(isinstance(one, str) for one in remarks)):
        yield f"remarks must be a list of sentences, and is {shown(remarks)}"
    if "rounds" in summary and not is_whole_number(summary["rounds"], 1):
        yield f"rounds must be a whole number, and is {shown(summary['rounds'])}"
    if "measures" in summary and not _are_measures(summary["measures"]):
        yield f"measures must be those of a run, and are {shown(summary['measures'])}"
    if not isinstance(summary.get("partition_hash", ""), str):
        yield "partition_hash must be a text"


def _are_measures(value: Any) -> bool:
    def fits(one):
        words = isinstance(one, dict) and one.keys() == set(Measure._fields)
        return words and isinstance(one["name"], str) and one["better"] in BETTER

    return isinstance(value, list) and len(value) > 0 and all(map(fits, value))


def measures_of(summary: Mapping[str, Any]) -> tuple[Measure, ...]:
    """The measures of a run, the headline of its task first; of an older run the accuracy."""
    return tuple(Measure(**one) for one in summary.get("measures", [ACCURACY._asdict()]))


KINDS = {str: "a text", dict: "an object", list: "a list"}


def _wrong(content: Mapping[str, Any], name: str, kind: type, where: str = "") -> Iterator[str]:
    """Yields a sentence unless the content has a value of that kind."""
    inside = f" of {where}" if where else ""
    if name not in content:
        yield f"it lacks {name}{inside}, perhaps as another version's"
    elif not isinstance(content[name], kind):
        yield f"{name}{inside} must be {KINDS[kind]}, and is {shown(content[name])}"


def read_clients(
    folder: Path, seeds: list[int], clients: int, measures: Sequence[Measure] = (ACCURACY,)
) -> dict[str, np.ndarray]:
    """Content of `clients.npz`, of a run with these seeds, so many clients and these measures.

    Raises:
      InputError: it can't be read, or doesn't fit the run.
    """
    arrays = _arrays(folder / CLIENTS, seeds, ("rounds", "record_rounds", "test_sizes"))
    evaluations, rounds = (len_of(arrays[name]) for name in ("rounds", "record_rounds"))
    each, scored = (len(seeds), rounds, clients), (len(seeds), evaluations, clients)
    fraction = {one.name: one.fraction for one in measures} | {"loss": False}
    sizes = {"rounds": (evaluations,), "record_rounds": (rounds,), "test_sizes": (clients,)}

    def troubles() -> Iterator[str]:
        for name, shape in sizes.items():
            yield from misfit(name, arrays[name], shape, "iu")
        if not evaluations or unordered(arrays["rounds"], rounds):
            yield f"rounds must be ascending rounds in 1..{rounds}"
        if not np.array_equal(arrays["record_rounds"], np.arange(1, rounds + 1)):
            yield "record_rounds must be 1, 2, ..."
        if out_of_range(arrays["test_sizes"], 0, np.inf):
            yield "test_sizes must be at least 0"
        for name in ("traffic/up_bytes", "traffic/down_bytes"):
            yield from misfit(name, arrays.get(name), each, NUMBER)
        for name, values in arrays.items():
            _, _, end = name.rpartition("/")
            if end in fraction and name.count("/") == 2:
                yield from misfit(name, values, scored, "f")
                if fraction[end] and out_of_range(values, 0, 1):
                    yield f"{name} must be fractions"
            elif values.ndim == 3 or name == "computation/flops":
                yield from misfit(name, values, each, NUMBER)

    for said in troubles():
        raise damaged(folder / CLIENTS, said)
    return arrays


def read_matrices(folder: Path, seeds: list[int], clients: int) -> dict[str, np.ndarray]:
    """Content of `mixing.npz`, {} where there is none.

    Raises:
      InputError: it can't be read, or doesn't fit the run.
    """
    path = folder / MATRICES
    if not path.exists():
        return {}
    arrays = _arrays(path, seeds, ("rounds",))
    kept = len_of(arrays["rounds"])

    def troubles() -> Iterator[str]:
        yield from misfit("rounds", arrays["rounds"], (kept,), "iu")
        if unordered(arrays["rounds"], 2**31):
            yield "rounds must be ascending rounds"
        for name, values in arrays.items():
            if name not in ("rounds", "seeds"):
                yield from misfit_matrix(name, values, (len(seeds), kept), clients)

    for said in troubles():
        raise damaged(path, said)
    return arrays


def _arrays(path: Path, seeds: list[int], needed: tuple[str, ...]) -> dict[str, np.ndarray]:
    try:
        arrays = read_arrays(path)
    except InputError as error:
        raise InputError(f"{error} {remedy(path.parent)}") from error
    for name in (*needed, "seeds"):
        if name not in arrays:
            raise damaged(path, f"it lacks {name}")
    if arrays["seeds"].tolist() != list(seeds):
        found = shown(arrays["seeds"])
        raise damaged(path, f"its seeds are {found}, those of {CONFIG} {shown(seeds)}")
    return arrays


def is_whole_number(value: Any, low: int = 0) -> bool:
    """Whether it is a whole number of JSON of at least `low`."""
    return isinstance(value, int) and not isinstance(value, bool) and low <= value < 2**63


def number(value: Any) -> bool:
    """Whether it is a number of JSON of at least 0, or NaN."""
    return isinstance(value, int | float) and not isinstance(value, bool) and not value < 0


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
