"""The configuration of a run and its machine: the content of `config.json`."""

import hashlib
import importlib.metadata
import json
import platform
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import absl.flags
import jax

import fedjax_pfl as pfl
from fedjax_pfl.data.whole_files import read_json

from ..outputs import run_files
from . import changed_code, flags, identity, plugins, resume
from .build import Experiment

VERSIONED = ("jax", "jaxlib", "flax", "optax", "numpy")
# Names and places don't change a run's numbers.
UNHASHED = ("algorithms", "save_models")


def describe(experiment: Experiment) -> dict[str, Any]:
    """The facts common to all algorithms of the comparison, for `config.json` and
    `summary.json`."""
    federation, dataset, partition = (
        experiment.federation, experiment.dataset, experiment.partition
    )  # fmt: skip
    scaling = experiment.args.input_scaling
    return {
        "summary": {
            "dataset": dataset.name,
            "partition": partition.rule,
            "dataset_hash": dataset.fingerprint(),
            "partition_hash": partition.hash(),
            "dataset_names_hash": identity.digest_of_names(dataset.class_names),
            "partition_names_hash": identity.digest_of_names(partition.names),
        },
        "seeds": experiment.seeds,
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
            "name": experiment.args.model,
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
            **changed_code.made_with(),
            **{name: importlib.metadata.version(name) for name in VERSIONED},
        },
        "git": git_state(),
        "flags": flags.resolved(experiment.args),
    }


def configuration(experiment: Experiment, result: pfl.Result, facts: Mapping) -> dict[str, Any]:
    """Content of an algorithm's `config.json`.

    `config_hash` is the SHA-256 of everything that determines the numbers: the algorithm and its
    hyperparameters, the content of the data set and of the partition, the execution, and all flags
    except places. `training` holds the algorithm's own options of local training, which replace
    the flags of these names.
    """
    algorithm = {"algorithm": result.algorithm, "hyperparameters": result.hyperparameters}
    entries = resume.configuration(experiment.args, **experiment.identity)
    entries = identity.of_algorithm(entries, result.algorithm)
    hashed = {name: value for name, value in entries.items() if name not in UNHASHED}
    hashes = {name: facts["summary"][name] for name in ("dataset_hash", "partition_hash")}
    core = {**algorithm, **hashes, "execution": facts["execution"], "flags": hashed}
    text = json.dumps(run_files.plain(core), sort_keys=True)
    config = {name: value for name, value in facts.items() if name != "summary"}
    config["model"] = {  # as the algorithm trained it, perhaps with a personal head
        **config["model"],
        "parameters": result.num_parameters,
        "blocks": result.blocks,
        "shared": dict(zip(result.blocks, result.block_sizes.tolist(), strict=True)),
    }
    return {
        **algorithm,
        "revision": identity.revision(pfl.core.ALGORITHMS[result.algorithm]),
        "code": plugins.digests(experiment.args.import_file, result.algorithm),
        "training": experiment.training[result.algorithm],
        "config_hash": hashlib.sha256(text.encode()).hexdigest(),
        "matrix_rounds": result.matrix_rounds,
        **config,
    }


def of_other_code(args: absl.flags.FlagValues, folder: Path, algorithm: str) -> list[str]:
    """Remarks on the row of a finished algorithm whose code is not that of now."""
    config = read_json(folder / "config.json")
    now = plugins.digests(args.import_file, algorithm)
    missing = set(config.get("code") or ()) - set(now)
    before = config.get("revision", identity.revision(pfl.core.ALGORITHMS[algorithm]))
    changed = missing or before != identity.revision(pfl.core.ALGORITHMS[algorithm])
    return ["made before its code changed"] if changed else []


def git_state() -> dict[str, Any] | None:
    """Commit of the checkout that this file lies in, and whether it has changes; None outside."""
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
