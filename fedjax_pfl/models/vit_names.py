"""Arrays of timm's and Hugging Face's vision transformers under the names of `vit`'s layers."""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from fedjax_pfl.utils.errors import InputError

# Layers of the files by the network's layer, "{}" is the block's number. Several are concatenated.
TIMM = {
    "embed.class_token": ("cls_token",),
    "embed.positions": ("pos_embed",),
    "embed.patches": ("patch_embed.proj",),
    "block_{}.norm_0": ("blocks.{}.norm1",),
    "block_{}.attention.qkv": ("blocks.{}.attn.qkv",),
    "block_{}.attention.proj": ("blocks.{}.attn.proj",),
    "block_{}.norm_1": ("blocks.{}.norm2",),
    "block_{}.fc_0": ("blocks.{}.mlp.fc1",),
    "block_{}.fc_1": ("blocks.{}.mlp.fc2",),
    "norm": ("norm",),
    "head": ("head",),
}
HUGGING_FACE = {
    "embed.class_token": ("vit.embeddings.cls_token",),
    "embed.positions": ("vit.embeddings.position_embeddings",),
    "embed.patches": ("vit.embeddings.patch_embeddings.projection",),
    "block_{}.norm_0": ("vit.encoder.layer.{}.layernorm_before",),
    "block_{}.attention.qkv": tuple(
        f"vit.encoder.layer.{{}}.attention.attention.{one}" for one in ("query", "key", "value")
    ),
    "block_{}.attention.proj": ("vit.encoder.layer.{}.attention.output.dense",),
    "block_{}.norm_1": ("vit.encoder.layer.{}.layernorm_after",),
    "block_{}.fc_0": ("vit.encoder.layer.{}.intermediate.dense",),
    "block_{}.fc_1": ("vit.encoder.layer.{}.output.dense",),
    "norm": ("vit.layernorm",),
    "head": ("classifier",),
}
PARAMETERS = ("embed.class_token", "embed.positions")  # of no layer
BESIDE = ("vit.pooler.", "vit.embeddings.mask_token")  # of other outputs than the class token's


def renamed(
    arrays: Mapping[str, np.ndarray], shapes: Mapping[str, Sequence[int]], channels: int
) -> tuple[dict[str, np.ndarray], tuple[str, ...]]:
    """Return a vision transformer's arrays under the network's names, and names of unused ones.

    Other files, and those for another network than `vit`, are returned as they are. Only the head
    may be missing or have another shape.

    Args:
      arrays: PyTorch arrays by name.
      shapes: shapes of the network's parameters by path, such as "block_0/norm_0/scale".
      channels: of an image.

    Raises:
      InputError: an array that is missing or unknown, or has another shape.
    """
    table, arrays = _table(arrays)
    depth = sum(f"block_{n}/attention/qkv/kernel" in shapes for n in range(len(shapes)))
    if table is None or not depth:
        return dict(arrays), ()
    new: dict[str, np.ndarray] = {}
    used = {name for name in arrays if name.startswith(BESIDE)}
    unused = tuple(used)
    for layer, theirs in table.items():
        for n in range(depth) if "{}" in layer else (0,):
            for leaf in ("",) if layer in PARAMETERS else (".weight", ".bias"):
                own = layer.format(n) + leaf
                names = [one.format(n) + leaf for one in theirs]
                absent = [name for name in names if name not in arrays]
                if absent and layer == "head":
                    continue
                if absent:
                    raise InputError(
                        f"The vision transformer's weights lack {absent[0]!r}, which a network of "
                        f"depth {depth} needs."
                    )
                wanted = _shape(own, shapes, channels, len(theirs))
                for name in names:
                    if layer != "head" and arrays[name].shape != wanted:
                        raise InputError(
                            f"{name!r} of the vision transformer's weights has the shape "
                            f"{[*arrays[name].shape]}, and the network needs {[*wanted]}: give "
                            "patch, hidden and images as the weights have."
                        )
                used |= {*names}
                new[own] = np.concatenate([arrays[name] for name in names])
    more = [name for name in arrays if name not in used]
    if more:
        raise InputError(
            f"The vision transformer's weights have {more[0]!r}, which a network of depth {depth} "
            "does not have."
        )
    return new, unused


def _table(
    arrays: Mapping[str, np.ndarray],
) -> tuple[dict[str, tuple[str, ...]] | None, Mapping[str, np.ndarray]]:
    """Return the table of a file's names, if any, and its arrays; "vit." may be missing there."""
    if "blocks.0.attn.qkv.weight" in arrays:
        return TIMM, arrays
    first = "encoder.layer.0.attention.attention.query.weight"
    if first in arrays:
        arrays = {
            name if name.startswith("classifier.") else f"vit.{name}": value
            for name, value in arrays.items()
        }
    return (HUGGING_FACE if f"vit.{first}" in arrays else None), arrays


def _shape(
    own: str, shapes: Mapping[str, Sequence[int]], channels: int, parts: int
) -> tuple[int, ...]:
    """Return PyTorch's shape of each of the arrays that are concatenated for a leaf."""
    path = own.replace(".", "/")
    if not path.endswith("/weight"):
        first, *rest = shapes[path]
        return (first // parts, *rest)
    kernel = path.replace("/weight", "/kernel")
    if kernel not in shapes:
        return tuple(shapes[path.replace("/weight", "/scale")])
    inputs, outputs = shapes[kernel]
    side = math.isqrt(inputs // channels)
    return (outputs, channels, side, side) if "patches" in own else (outputs // parts, inputs)
