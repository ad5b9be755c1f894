"""Files of pretrained networks that say what these were trained on: safetensors with metadata."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy

from fedjax_pfl.data.atomic_files import atomic_write
from fedjax_pfl.data.files import as_path, reading, require_file
from fedjax_pfl.data.public_part import sample_hashes
from fedjax_pfl.utils import trees
from fedjax_pfl.utils.boundary import checked
from fedjax_pfl.utils.errors import InputError, require
from fedjax_pfl.utils.typing import Tree

SEEN = "seen_samples"  # name of the tensor with hashes of the training samples
FACTS = "fedjax_pfl"  # key of the facts in the file's metadata
WITHOUT = "without"  # fact: name of the module that the file leaves out


@checked
def write_base(
    path: str | Path,
    model: Tree,
    samples: np.ndarray,
    facts: Mapping[str, Any],
    without: str | None = None,
) -> None:
    """Write a pretrained network as a safetensors file that says what it was trained on.

    `federate(initial_model=...)` then notes how many of these samples its clients hold.

    Args:
      path: NAME.safetensors; an existing file is replaced.
      model: leaves by collection, such as {"params": {...}}.
      samples: stored training samples [n, ...], of which the file has hashes.
      facts: JSON values by name; "origin" is a phrase such as "trained on 300 samples of digits".
      without: name of a module that is left out, such as a classifier.

    Raises:
      InputError: another ending.
      OutputError: the file can't be written.
    """
    path = as_path("path", path)
    require(path.suffix == ".safetensors", "path", str(path), "a file NAME.safetensors")
    kept = {
        name: np.ascontiguousarray(leaf)
        for name, leaf in trees.by_path(model).items()
        if without is None or not f"{name}/".partition("/")[2].startswith(f"{without}/")
    }
    metadata = {FACTS: json.dumps({**facts, WITHOUT: without}, sort_keys=True)}
    with atomic_write(path) as part:
        seen = np.sort(sample_hashes(samples))
        part.write_bytes(safetensors.numpy.save({**kept, SEEN: seen}, metadata))


def read_facts(path: Path) -> tuple[dict[str, Any], np.ndarray]:
    """Return the facts of a safetensors file and the hashes of seen samples; ({}, []) without."""
    require_file(path)
    with reading(path, "a safetensors file"), safetensors.safe_open(path, "numpy") as file:
        text = (file.metadata() or {}).get(FACTS)
        seen = file.get_tensor(SEEN) if SEEN in file.keys() else np.zeros(0)  # noqa: SIM118
    if text is None:
        return {}, np.zeros(0, np.uint64)
    with reading(path, "a safetensors file with facts in JSON"):
        facts = json.loads(text)
    if not isinstance(facts, dict) or seen.ndim != 1 or seen.dtype != np.uint64:
        raise InputError(
            f"{path} has invalid metadata of fedjax_pfl: write it again with pfl.models.write_base."
        )
    return facts, seen
