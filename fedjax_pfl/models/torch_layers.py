"""Layers of a PyTorch `state_dict`, and the network's layer for each of them."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from fedjax_pfl.models.torch_names import known_pairs, plain_name, unwrapped
from fedjax_pfl.utils.conversions import require_unmasked
from fedjax_pfl.utils.errors import InputError, require, require_name

IGNORED = "num_batches_tracked"
KINDS = {
    "conv": "convolutions", "matrix": "linear layers and embeddings", "norm": "normalizations",
    "recurrent": "recurrent layers", "other": "other layers",
}  # fmt: skip
Layers = dict[str, dict[str, Any]]  # by the layer's name, in order: its leaves by name
HINT = "names={'layer there': 'layer here'} matches layers whose names and order differ."


def several(names: Sequence[str]) -> str:
    more = f" and {len(names) - 6} more" if len(names) > 6 else ""
    return f"{', '.join(names[:6])}{more}"


def arrays_of(state_dict: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Return the arrays of a state_dict by name, without counters and prefixes of wrappers."""
    allowed = "a state_dict: arrays by name, such as module.state_dict() gives"
    filled = isinstance(state_dict, Mapping) and len(state_dict) > 0
    require(filled, "state_dict", type(state_dict).__name__, allowed)
    for name, value in state_dict.items():
        if isinstance(value, Mapping):
            raise InputError(f"The state_dict has another one at {name!r}: give that alone.")
    return {
        name: as_array(f"state_dict at {name!r}", value)
        for name, value in unwrapped({str(name): x for name, x in state_dict.items()}).items()
        if name.rpartition(".")[2] != IGNORED
    }


def as_array(what: str, value: Any) -> np.ndarray:
    """Return a tensor or array of real numbers as one of NumPy."""
    if hasattr(value, "detach"):  # a tensor
        value = value.detach().cpu()
        value = value.float() if "bfloat16" in str(value.dtype) else value
    require_unmasked(what, value)
    array = np.asarray(value)
    numeric = jnp.issubdtype(array.dtype, jnp.number) and array.dtype.kind != "c"
    require(numeric, what, array.dtype.name, "numbers")
    return array


def torch_layers_of(arrays: Mapping[str, np.ndarray]) -> Layers:
    """Return arrays by layer and name; a recurrent module has layers "NAME.l0", "NAME.l1", ..."""
    layers: Layers = {}
    for full, value in arrays.items():
        layer, _, name = full.rpartition(".")
        of_stack = re.fullmatch(r"(weight|bias)_(ih|hh)_(l\d+)", name)
        if of_stack:
            name = f"{of_stack[1]}_{of_stack[2]}"
            layer = f"{layer}.{of_stack[3]}".lstrip(".")
        layers.setdefault(layer, {})[name] = value
    return layers


def paired(
    torch_layers: Layers, own_layers: Layers, names: Mapping[str, str], ordered: bool = True
) -> dict[str, str | None]:
    """Return the network's layer for each of PyTorch's layers, or None.

    Args:
      torch_layers: PyTorch's layers, in order.
      own_layers: the network's layers, in order.
      names: pairs that the user gave.
      ordered: whether the order of PyTorch's layers is the module's, and not that of a file.

    Raises:
      InputError: a name that is unknown or given twice, or an order that tells nothing.
    """
    given = {plain_name(layer, torch_layers): own for layer, own in names.items()}
    for layer, own in given.items():
        require_name("layer of the state_dict", layer, torch_layers)
        require_name("layer of the network", own, own_layers)
    require(len({*given.values()}) == len(names), "names", dict(names), "different layers")
    pairs: dict[str, str | None] = {**(given or known_pairs(torch_layers, own_layers))}
    for layer in torch_layers:
        same = layer.replace(".", "/")
        if layer not in pairs and same in own_layers and same not in pairs.values():
            pairs[layer] = same
    for kind in KINDS:
        left = [name for name, leaves in torch_layers.items() if _torch_kind(leaves) == kind]
        left = [name for name in left if name not in pairs]
        free = [own for own, leaves in own_layers.items() if _leaf_kind(leaves) == kind]
        free = [own for own in free if own not in pairs.values()]
        if left and free and len(left) != len(free):
            raise InputError(
                f"The state_dict has {len(left)} {KINDS[kind]} ({several(left)}) and the network "
                f"{len(free)} ({several(free)}), so their order tells nothing. {HINT}"
            )
        if free and not ordered:
            _require_numbers({name: torch_layers[name] for name in left})
        pairs |= dict(zip(left, free or [None] * len(left), strict=False))
    return {layer: pairs[layer] for layer in torch_layers}


def _require_numbers(layers: Layers) -> None:
    """Refuse layers of equal shapes whose names differ in more than numbers, which order them."""
    seen: dict[tuple[int, ...], str] = {}
    for name, leaves in layers.items():
        shape = next(iter(leaves.values())).shape
        other = seen.setdefault(shape, name)
        if re.sub(r"\d+", "", name) != re.sub(r"\d+", "", other):
            raise InputError(
                f"{other!r} and {name!r} have the same shape, and a safetensors file does not keep "
                f"the order of layers. {HINT}"
            )


def _torch_kind(leaves: Mapping[str, Any]) -> str:
    if "weight_ih" in leaves:
        return "recurrent"
    if "running_mean" in leaves:
        return "norm"
    axes = leaves["weight"].ndim if "weight" in leaves else 0
    return ("other", "norm", "matrix")[axes] if axes < 3 else "conv"


def _leaf_kind(leaves: Mapping[str, Any]) -> str:
    if "recurrent" in leaves:
        return "recurrent"
    if "kernel" in leaves:
        return "matrix" if len(leaves["kernel"][1].shape) == 2 else "conv"
    if leaves.keys() & {"embedding", "table"}:
        return "matrix"
    return "norm" if leaves.keys() & {"scale", "mean"} else "other"


def joined(leaves: dict[str, Any]) -> dict[str, Any]:
    """Add the two biases of a recurrent layer, which here has one."""
    leaves = dict(leaves)
    if {"weight_ih", "weight_hh"} <= leaves.keys():
        gates = len(leaves["weight_ih"]) // leaves["weight_hh"].shape[-1]
        if gates == 3:
            raise InputError(
                "A GRU's layers can't be converted: one of its gates uses the two biases apart."
            )
    if {"bias_ih", "bias_hh"} <= leaves.keys():
        leaves["bias"] = leaves.pop("bias_ih") + leaves.pop("bias_hh")
    return leaves
