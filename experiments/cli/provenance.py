"""The origin of a run's numbers: data, model, machine and code, for `config.json` and `run.json`.

Changes of the package's files or of JAX may change roundings, so a run continues with a warning. A
changed revision, or a changed file of the user's, gives other numbers: it is another run.
"""

import hashlib
import importlib.metadata
import platform
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import jax

import fedjax_pfl as pfl

from . import identity, plugins
from .build import Experiment

VERSIONED = ("jax", "jaxlib", "flax", "optax", "numpy")
MADE_WITH = "made_with"  # of the record: the package and JAX, an entry for each that worked on it
FOLDERS = (Path(__file__).parents[1], Path(pfl.__file__).parent)


def describe(experiment: Experiment) -> dict[str, Any]:
    """Return facts common to all algorithms of a run; those in "summary" are for `summary.json`."""
    federation, dataset, partition = (
        experiment.federation, experiment.dataset, experiment.partition
    )  # fmt: skip
    scaling = experiment.config.input_scaling
    return {
        "summary": {
            "dataset": dataset.name,
            "partition": partition.rule,
            "dataset_hash": dataset.fingerprint(),
            "partition_hash": partition.hash(),
            "dataset_names_hash": identity.digest_of_names(dataset.class_names),
            "partition_names_hash": identity.digest_of_names(partition.names),
        },
        "seeds": experiment.config.seeds,
        "dataset": {
            "name": dataset.name,
            "num_train": dataset.num_train,
            "num_test": dataset.num_test,
            "num_classes": dataset.num_classes,
            "hash": dataset.fingerprint(),
            "input_shape": dataset.input_shape,
            "input_scaling": dataset.input_scaling if scaling == "default" else scaling,
        },
        "partition": {
            "rule": partition.rule,
            "options": partition.options,
            **partition.report(dataset.labels, dataset.num_classes),
        },
        "model": {
            "name": experiment.config.model,
            "parameters": federation.plan.num_parameters,
            "frozen": federation.num_frozen,
            "initial": None if federation.initial_match is None else str(federation.initial_match),
            "blocks": federation.plan.blocks,
        },
        "execution": {
            "clients": str(federation.execution),
            "seeds": federation.execution.seeds,
            "backend": jax.default_backend(),
            "device": jax.devices()[0].device_kind,
            "devices": jax.device_count(),
        },
        "versions": {
            "python": platform.python_version(),
            **versions(),
            **{name: importlib.metadata.version(name) for name in VERSIONED},
        },
        "git": git_state(),
        "flags": experiment.config.by_group(),
    }


def configuration(experiment: Experiment, result: pfl.Result, facts: Mapping) -> dict[str, Any]:
    """Return the content of an algorithm's `config.json`.

    `training` holds the algorithm's own options of local training, which replace the flags of these
    names.
    """
    config = {name: value for name, value in facts.items() if name != "summary"}
    config["model"] = {  # as the algorithm trained it, perhaps with a personal head
        **config["model"],
        "parameters": result.num_parameters,
        "blocks": result.blocks,
        "shared": dict(zip(result.blocks, result.block_sizes.tolist(), strict=True)),
    }
    return {
        "algorithm": result.algorithm,
        "hyperparameters": result.hyperparameters,
        "revision": identity.revision(pfl.core.ALGORITHMS[result.algorithm]),
        "code": plugins.digests(experiment.config.import_file, result.algorithm),
        "training": experiment.config.training_of[result.algorithm],
        "matrix_rounds": result.matrix_rounds,
        **config,
    }


def git_state() -> dict[str, Any] | None:
    """Return the commit of this file's checkout and whether it has changes, or None."""
    root = Path(__file__).resolve().parents[2]

    def git(*words: str) -> str:
        done = subprocess.run(
            ["git", "-C", str(root), *words], capture_output=True, text=True, timeout=10, check=True
        )
        return done.stdout.strip()

    try:
        if Path(git("rev-parse", "--show-toplevel")).resolve() != root:
            return None
        return {"commit": git("rev-parse", "HEAD"), "changed": bool(git("status", "--porcelain"))}
    except (OSError, subprocess.SubprocessError):
        return None


@cache
def package() -> str:
    """Return the digest of the Python files of the package and its commands."""
    total = hashlib.sha256()
    for folder in FOLDERS:
        for path in sorted(folder.rglob("*.py")):
            content = hashlib.sha256(path.read_bytes()).hexdigest()
            total.update(f"{path.relative_to(folder).as_posix()} {content}\n".encode())
    return total.hexdigest()[:16]


def versions() -> dict[str, str]:
    """Return the package's code digest and the versions of JAX in this process."""
    libraries = {name: importlib.metadata.version(name) for name in ("jax", "jaxlib")}
    return {"fedjax_pfl": pfl.__version__, "code of fedjax_pfl": package(), **libraries}


def history(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entry of a folder's next record on the code that worked on it.

    Args:
      record: the folder's last one, {} if there is none.
    """
    states, now = record.get(MADE_WITH, []), versions()
    return {MADE_WITH: states if states and states[-1] == now else [*states, now]}


def warn(output: Path, record: Mapping[str, Any]) -> None:
    """Warn if a folder was begun with other code of the package or another JAX."""
    states = record.get(MADE_WITH)
    changed = identity.difference(states[-1], versions()) if states else ""
    if changed:
        print(
            f"warning: {output} goes on with other code, so that its numbers may differ slightly "
            f"from those of one run: {changed.replace('--', '')}.",
            file=sys.stderr,
        )
