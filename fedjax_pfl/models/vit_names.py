"""Arrays of timm's and Hugging Face's vision transformers under the names of `vit`'s layers."""

import re
from collections.abc import Mapping

import numpy as np

# Patterns of the beginnings of names, and the names here. The number is that of the block.
TIMM = {
    r"cls_token$": "embed.class_token",
    r"pos_embed$": "embed.positions",
    r"patch_embed\.proj\.": "embed.patches.",
    r"blocks\.(\d+)\.norm1\.": r"block_\1.norm_0.",
    r"blocks\.(\d+)\.attn\.": r"block_\1.attention.",
    r"blocks\.(\d+)\.norm2\.": r"block_\1.norm_1.",
    r"blocks\.(\d+)\.mlp\.fc1\.": r"block_\1.fc_0.",
    r"blocks\.(\d+)\.mlp\.fc2\.": r"block_\1.fc_1.",
}
HUGGING_FACE = {
    r"embeddings\.cls_token$": "embed.class_token",
    r"embeddings\.position_embeddings$": "embed.positions",
    r"embeddings\.patch_embeddings\.projection\.": "embed.patches.",
    r"encoder\.layer\.(\d+)\.layernorm_before\.": r"block_\1.norm_0.",
    r"encoder\.layer\.(\d+)\.attention\.attention\.(query|key|value)\.": r"block_\1.attention.\2.",
    r"encoder\.layer\.(\d+)\.attention\.output\.dense\.": r"block_\1.attention.proj.",
    r"encoder\.layer\.(\d+)\.layernorm_after\.": r"block_\1.norm_1.",
    r"encoder\.layer\.(\d+)\.intermediate\.dense\.": r"block_\1.fc_0.",
    r"encoder\.layer\.(\d+)\.output\.dense\.": r"block_\1.fc_1.",
    r"layernorm\.": "norm.",
    r"classifier\.": "head.",
}
OF_TIMM = "blocks.0.attn.qkv.weight"
OF_HUGGING_FACE = "encoder.layer.0.attention.attention.query.weight"
BESIDE = ("pooler.", "embeddings.mask_token")  # arrays for other outputs, which are ignored


def renamed(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return a vision transformer's arrays under the names of `vit`, and other files' as they are.

    Hugging Face's queries, keys and values become one layer.
    """
    if OF_TIMM in arrays:
        return {_name(name, TIMM): value for name, value in arrays.items()}
    plain = {name.removeprefix("vit."): value for name, value in arrays.items()}
    if OF_HUGGING_FACE not in plain:
        return dict(arrays)
    named = {
        _name(name, HUGGING_FACE): value
        for name, value in plain.items()
        if not name.startswith(BESIDE)
    }
    for query in [name for name in named if ".attention.query." in name]:
        three = [query.replace("query", one) for one in ("query", "key", "value")]
        parts = [named[name] for name in three if name in named]
        if len(parts) == 3 and len({part.shape for part in parts}) == 1:
            named = {name: value for name, value in named.items() if name not in three}
            named[query.replace("query", "qkv")] = np.concatenate(parts)
    return named


def _name(name: str, table: Mapping[str, str]) -> str:
    """Return a name with another beginning, by the first pattern that it fits."""
    for pattern, here in table.items():
        new, count = re.subn(f"^{pattern}", here, name)
        if count:
            return new
    return name
