"""The identity of a run, and what a command that finds a run's folder may do with it.

A path does not identify data, since the file may be replaced, and defaults may change between
versions. A run is therefore identified by its flags with resolved defaults, in which digests of the
data set and of the partition (names of classes and clients included) replace paths. Settings of JAX
that change numbers are further entries where they differ from JAX's defaults, as are the revisions
of algorithms and digests of plugins.
"""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import jax

import fedjax_pfl as pfl
from fedjax_pfl._version import ENGINE_REVISION
from fedjax_pfl.data.files import as_path, reading, require_file
from fedjax_pfl.execution import processes
from fedjax_pfl.utils.errors import cut, shown

from ..outputs import run_files
from . import flag_roles, plugins
from .config import ExperimentConfig
from .flags import repeated

DATA, PARTITION, MODEL = "content of the data set", "content of the partition", "the model"
INITIAL = "content of the initial model"
CLASS_NAMES, CLIENT_NAMES = "names of the classes", "names of the clients"
# Settings of JAX that change a run's numbers, with their defaults.
NUMERICS = {
    "jax_default_matmul_precision": None,
    "jax_default_prng_impl": "threefry2x32",
    "jax_enable_x64": False,
    "jax_random_seed_offset": 0,
    "jax_threefry_partitionable": True,
}
REPLACED = object()  # instead of a flag's value: other entries are more exact
ROUNDS, SEEDS, ALGORITHMS = "rounds", "num_seeds", "algorithms"
LENGTHS = ("rounds", "patience")  # how long simulations are


def run_identity(config: ExperimentConfig, entries: Mapping[str, Any] = {}) -> dict[str, Any]:
    """Return all flags and facts that identify a run, by name, as JSON values.

    Args:
      entries: they add to the flags or replace them (`content`).
    """
    values = {n: value for group in config.by_group().values() for n, value in group.items()}
    pairs = repeated() - {"import_file"}  # in any order, and perhaps twice
    values |= {name: sorted(set(values[name])) for name in pairs & values.keys()}
    values = {
        name: value for name, value in values.items() if name not in flag_roles.NEUTRAL
    } | dict(entries)
    code = plugins.digests(values.pop("import_file"))  # the files' contents, not their places
    values |= {"import_file": code} if code else {}
    known = {name: value for name, value in values.items() if value is not REPLACED}
    return run_files.plain(dict(sorted(known.items())))


def content(
    config: ExperimentConfig, dataset: pfl.Dataset, partition: pfl.Partition
) -> dict[str, Any]:
    """Return entries by name that replace or extend the flags' values.

    Args:
      dataset, partition: as loaded and dealt, validation samples set aside.

    Raises:
      InputError: no such model, or no file of initial values.
    """
    scaling = config.input_scaling
    entries = {
        DATA: dataset.fingerprint()[:16],
        PARTITION: partition.hash()[:16],
        MODEL: _model(config, dataset),
        "dataset": config.dataset.partition(":")[0],
        "input_scaling": dataset.input_scaling if scaling == "default" else scaling,
        "partition": config.partition if config.partition_file is None else "file",
        "partition_file": REPLACED,
        "num_clients": partition.num_clients,
        "set": REPLACED,
        "init_from": REPLACED,
        # Records of versions without the flag have no entry for it.
        "convolutions": REPLACED if config.convolutions == "auto" else config.convolutions,
        **_numerics(config.dtype),
    }
    for entry, names in ((CLASS_NAMES, dataset.class_names), (CLIENT_NAMES, partition.names)):
        entries |= {entry: digest_of_names(names)} if names else {}
    if config.init_from is not None:
        path = as_path("--init_from", config.init_from)
        require_file(path)
        with reading(path):
            entries[INITIAL] = hashlib.sha256(path.read_bytes()).hexdigest()[:16]
    for name, algorithm in config.instances.items():
        values = {
            "revision": revision(algorithm),
            "batch_norm": config.batch_norm or algorithm.batch_norm,
            "share": config.share or algorithm.sharing(),
        }
        values |= {**vars(algorithm), **config.training_of[name]}
        entries |= {f"{name}.{key}": _without_addresses(value) for key, value in values.items()}
    return entries


def digest_of_names(names: Sequence[str]) -> str:
    """Return the digest of the names of classes or clients; "" without names."""
    text = json.dumps([str(name) for name in names])
    return hashlib.sha256(text.encode()).hexdigest()[:16] if names else ""


def revision(algorithm: pfl.Algorithm | type[pfl.Algorithm]) -> str:
    """Return the revisions of engine and algorithm, such as "1.1"."""
    return f"{ENGINE_REVISION}.{algorithm.revision}"


def merged(parts: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Merge the entries of several programs; where they differ, as "NAME of PROGRAM"."""
    entries: dict[str, Any] = {}
    for name in dict.fromkeys(name for part in parts.values() for name in part):
        values = {program: part[name] for program, part in parts.items() if name in part}
        first = next(iter(values.values()))
        if all(value == first for value in values.values()):
            entries[name] = first
        else:
            entries |= {f"{name} of {program}": value for program, value in values.items()}
    return entries


def difference(before: Mapping[str, Any], now: Mapping[str, Any], most: int = 6) -> str:
    """Describe the difference of two runs' records, as part of a sentence; "" if equal."""

    def text_of(record: Mapping[str, Any], name: str, missing: str) -> str:
        if name not in record:
            return missing
        return cut(shown(record[name]), 100)

    changed = []
    names = before.keys() | now.keys()
    if before.get("algorithms") != now.get("algorithms"):  # which lists each algorithm's values too
        names = {name for name in names if "." not in name or (name in before and name in now)}
    for name in sorted(names):
        if before.get(name) != now.get(name):
            flag = f"--{name}" if re.fullmatch(r"\w+", name) else name
            was = text_of(before, name, "not recorded" if flag == name else "None")
            is_now = text_of(now, name, "absent")
            if was == is_now:  # both are cut, and alike where they are shown
                was, is_now = _from_first_difference(before[name], now[name])
            changed.append(f"{flag} was {was} and is {is_now}")
    if len(changed) > most:
        changed = [*changed[:most], f"and {len(changed) - most} more"]
    return "; ".join(changed)


def _from_first_difference(before: Any, now: Any) -> tuple[str, str]:
    """Cut two long texts or lists to what follows their common beginning."""
    if not isinstance(before, str | list) or type(before) is not type(now):
        before, now = str(before), str(now)
    pairs = enumerate(zip(before, now, strict=False))
    place = next((at for at, (a, b) in pairs if a != b), min(len(before), len(now)))
    was, is_now = (cut(shown(one[place:]), 100) for one in (before, now))
    return f"{was} from place {place + 1} on", f"{is_now} from there on"


def _numerics(dtype: str) -> dict[str, Any]:
    """Return the settings of `NUMERICS` that differ from the defaults of JAX or --dtype."""
    usual = {**NUMERICS, "jax_enable_x64": dtype == "float64"}
    now = {name: getattr(jax.config, name) for name in NUMERICS}
    return {f"JAX's {name}": now[name] for name in NUMERICS if now[name] != usual[name]}


def _model(config: ExperimentConfig, dataset: pfl.Dataset) -> str:
    """Return the digest of the network with all its sizes, but without parameters."""
    shape, classes = dataset.input_shape, dataset.num_classes
    options = {"vocab_size": dataset.vocab_size, **config.model_options}
    network = pfl.models.make_model(config.model, shape, classes, config.initializer, **options)
    text = f"{type(network).__qualname__} {_without_addresses(repr(network))}"
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _without_addresses(value: Any) -> Any:
    """Remove memory addresses, which differ between processes, from a text."""
    text = str(value) if callable(value) or isinstance(value, pfl.core.SharedLayers) else value
    return re.sub(r" at 0x[0-9a-f]+", "", text) if isinstance(text, str) else text


def check_alike(entries: Mapping[str, Any]) -> None:
    """Raise `InputError` if processes of a run have different flags or data."""
    for number, other in enumerate(processes.exchange(dict(entries))):
        changed = difference(other, entries)
        if changed:
            raise pfl.InputError(
                "All processes need the same flags and data, but between process "
                f"{number} and process {processes.index()} {changed}."
            )


def grows(before: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Return whether a command is larger than a run: more rounds, seeds or algorithms.

    A larger patience, or none, counts as more rounds. With a patience all seeds end together, so
    none can be added.
    """
    changed = {name for name in before.keys() | now.keys() if before.get(name) != now.get(name)}
    old, new = before.get(ALGORITHMS, []), now.get(ALGORITHMS, [])
    added = tuple(f"{name}." for name in new if name not in old)
    explained = {ALGORITHMS, SEEDS, *LENGTHS} | {n for n in changed if n.startswith(added)}
    if now[ROUNDS] > before[ROUNDS]:
        explained.add("matrix_rounds")
    if added and set(before.get("import_file", ())) <= set(now.get("import_file", ())):
        explained.add("import_file")  # of the new algorithms
    larger = set(old) <= set(new) and all(now[name] >= before[name] for name in (ROUNDS, SEEDS))
    was, patience = before.get("patience"), now.get("patience")
    longer = patience is None or (was is not None and patience >= was)
    together = SEEDS not in changed or patience is None
    return bool(changed) and changed <= explained and larger and longer and together
