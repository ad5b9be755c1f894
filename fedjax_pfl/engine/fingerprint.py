"""Fingerprints that identify a simulation, and digests of arrays."""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fedjax_pfl._version import __version__
from fedjax_pfl.data.atomic_files import require_version
from fedjax_pfl.federation.optimizers import formula
from fedjax_pfl.utils.errors import InputError, warn

VERSION = "fedjax_pfl's version"
JAX = "JAX's version"


def fingerprint(program: Any, matrix_rounds: Sequence[int]) -> dict[str, str]:
    """Return what identifies a simulation, {part: text or hash}."""
    runs, federation = program.runs, program.federation
    if "dp_epsilon" in runs.numbers:  # it determines the noise, with the number of rounds
        given = {name: value for name, value in runs.numbers.items() if name != "dp_noise"}
        runs = replace(runs, numbers=given)
    # How clients are run, and on which devices, changes results by rounding only.
    data, without = federation.data, replace(federation, data=None, execution=None)
    static = f"{_plain(jax.tree.structure(without))} {data.num_classes} {data.sample_shape}"
    rates = _hash([*jax.tree.leaves(without), federation.training.rate_factors(program.rounds)])
    shapes = federation.model_shapes["params"]
    how = program.adapt
    own = None if how is None else how.optimizer
    adapted = "" if own is None else formula(own, shapes)
    return {
        "algorithm": f"{_plain(jax.tree.structure(runs.algorithm))} {runs.algorithm.revision}",
        "seeds and settings": _hash(jax.tree.leaves(runs)),
        "rounds": str(program.rounds),
        "evaluation": f"{program.eval_every} {_plain(how)} {adapted} {program.scored}",
        "kept matrices": str([int(r) for r in sorted(matrix_rounds)]),
        "model or training": hashlib.sha256(
            f"{static} {formula(federation.training.make_optimizer(), shapes)}".encode()
        ).hexdigest(),
        "data, partition or learning rate": f"{data.content()} {rates}",
        "device": jax.devices()[0].device_kind,
        JAX: jax.__version__,
        VERSION: __version__,
    }


def check_same(saved: Mapping[str, str], now: Mapping[str, str], folder: Path) -> None:
    """Raise `InputError` with the differences between a checkpoint's simulation and this one.

    Another version of JAX, or of this package in the same series, is only warned of.
    """
    require_version(
        f"The content of {folder}",
        saved.get(VERSION),
        "Give another folder to start again.",
    )
    other = [name for name in now if saved.get(name) != now[name] and name not in (JAX, VERSION)]
    if other:
        raise InputError(
            f"The checkpoints in {folder} are another simulation's: its {'; '.join(other)} differ. "
            "Give the same settings to continue it, or another folder to start again."
        )
    for name, title in ((JAX, "JAX"), (VERSION, "fedjax_pfl")):
        if saved.get(name) != now.get(name):
            warn(
                f"The checkpoints in {folder} are of {title} {saved.get(name)} and go on with "
                f"{title} {now.get(name)}: the last digits may differ from those of one run."
            )


def _plain(value: Any) -> str:
    """Return a `repr` without addresses, which differ by process, or this package's modules."""
    return re.sub(r" at 0x[0-9a-f]+|\bfedjax_pfl\.(\w+\.)*", "", repr(value))


def _hash(arrays: Sequence) -> str:
    named = {f"{k:06}": np.asarray(jax.device_get(array)) for k, array in enumerate(arrays)}
    return digest(named, {})


def digest(arrays: Mapping[str, np.ndarray], header: Mapping[str, Any]) -> str:
    """Return the SHA-256 of names, types, shapes and bytes."""
    total = hashlib.sha256(json.dumps(header, sort_keys=True).encode())
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        total.update(f"{name} {array.dtype} {array.shape}".encode())
        total.update(array.reshape(-1).view(np.uint8).data)
    return total.hexdigest()
