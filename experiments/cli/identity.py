"""The identity of a run: its flags, and their meaning when it was made.

A path says where data are, not which: the file may be replaced. A default is a number of the
package, and another version may have another one. A run is therefore identified by the content of
its data set and partition, names of classes and clients included, and by the resolved defaults.
Settings of JAX that change numbers are entries where they are not JAX's own defaults.
"""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import absl.flags
import jax

import fedjax_pfl as pfl
from fedjax_pfl._version import ENGINE_REVISION
from fedjax_pfl.data.files import as_path, reading, require_file
from fedjax_pfl.utils.errors import cut, shown

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


def describe(
    args: absl.flags.FlagValues,
    algorithms: Mapping[str, pfl.Algorithm],
    training: Mapping[str, Mapping[str, Any]],
    dataset: pfl.Dataset,
    partition: pfl.Partition,
    model_options: Mapping[str, Any],
) -> dict[str, Any]:
    """Entries that replace flags' values or add to them, by name.

    Args:
      args: flags of `experiments.run`.
      algorithms: with all hyperparameters, defaults included.
      training: options of local training in which algorithms differ from the flags.
      dataset, partition: as loaded and dealt, validation samples set aside.
      model_options: of --model_option.

    Raises:
      pfl.InputError: no such model, or no file of initial values.
    """
    scaling = args.input_scaling
    entries = {
        DATA: dataset.fingerprint()[:16],
        PARTITION: partition.hash()[:16],
        MODEL: _model(args, dataset, model_options),
        "dataset": args.dataset.partition(":")[0],
        "input_scaling": dataset.input_scaling if scaling == "default" else scaling,
        "partition": args.partition if args.partition_file is None else "file",
        "partition_file": REPLACED,
        "num_clients": partition.num_clients,
        "set": REPLACED,
        "init_from": REPLACED,
        # Records of versions without the flag have no entry for it.
        "convolutions": REPLACED if args.convolutions == "auto" else args.convolutions,
        **_numerics(args.dtype),
    }
    for entry, names in ((CLASS_NAMES, dataset.class_names), (CLIENT_NAMES, partition.names)):
        entries |= {entry: digest_of_names(names)} if names else {}
    if args.init_from is not None:
        path = as_path("--init_from", args.init_from)
        require_file(path)
        with reading(path):
            entries[INITIAL] = hashlib.sha256(path.read_bytes()).hexdigest()[:16]
    for name, algorithm in algorithms.items():
        values = {
            "revision": revision(algorithm),
            "batch_norm": args.batch_norm or algorithm.batch_norm,
            "share": args.share or algorithm.sharing(),
        }
        values |= {**algorithm.hyperparameters(), **training[name]}
        entries |= {f"{name}.{key}": _without_places(value) for key, value in values.items()}
    return entries


def digest_of_names(names: Sequence[str]) -> str:
    """Digest of the names of classes or clients; "" where they have none."""
    text = json.dumps([str(name) for name in names])
    return hashlib.sha256(text.encode()).hexdigest()[:16] if names else ""


def revision(algorithm: pfl.Algorithm | type[pfl.Algorithm]) -> str:
    """The revisions of the engine and of an algorithm, such as "1.1": whose numbers a run has."""
    return f"{ENGINE_REVISION}.{algorithm.revision}"


def of_algorithm(entries: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The entries (flags among them) without those of other algorithms."""
    own = f"{name}."
    return {key: value for key, value in entries.items() if "." not in key or key.startswith(own)}


def merged(parts: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The entries of several programs: one where all agree, else "NAME of PROGRAM" of each."""
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
    """The difference of two runs' records, as part of a sentence; "" if there is none."""

    def told(record: Mapping[str, Any], name: str, missing: str) -> str:
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
            was = told(before, name, "not recorded" if flag == name else "None")
            is_now = told(now, name, "absent")
            if was == is_now:  # both are cut, and alike where they are shown
                was, is_now = _from_first_difference(before[name], now[name])
            changed.append(f"{flag} was {was} and is {is_now}")
    if len(changed) > most:
        changed = [*changed[:most], f"and {len(changed) - most} more"]
    return "; ".join(changed)


def _from_first_difference(before: Any, now: Any) -> tuple[str, str]:
    """Two long texts or lists, each from the first place on in which they differ."""
    if not isinstance(before, str | list) or type(before) is not type(now):
        before, now = str(before), str(now)
    pairs = enumerate(zip(before, now, strict=False))
    place = next((at for at, (a, b) in pairs if a != b), min(len(before), len(now)))
    was, is_now = (cut(shown(one[place:]), 100) for one in (before, now))
    return f"{was} from place {place + 1} on", f"{is_now} from there on"


def _numerics(dtype: str) -> dict[str, Any]:
    """The settings of `NUMERICS` that are not as JAX, or --dtype, has them."""
    usual = {**NUMERICS, "jax_enable_x64": dtype == "float64"}
    now = {name: getattr(jax.config, name) for name in NUMERICS}
    return {f"JAX's {name}": now[name] for name in NUMERICS if now[name] != usual[name]}


def _model(args, dataset: pfl.Dataset, options: Mapping[str, Any]) -> str:
    """Digest of the network with all its sizes, before it has parameters."""
    shape, classes = dataset.input_shape, dataset.num_classes
    options = {"vocab_size": dataset.vocab_size, **options}
    network = pfl.models.make_model(args.model, shape, classes, args.initializer, **options)
    text = f"{type(network).__qualname__} {_without_places(repr(network))}"
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _without_places(value: Any) -> Any:
    """A function's text has its address in memory, which differs between processes."""
    text = str(value) if callable(value) or isinstance(value, pfl.core.SharedLayers) else value
    return re.sub(r" at 0x[0-9a-f]+", "", text) if isinstance(text, str) else text
