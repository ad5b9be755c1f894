"""Transformers for texts of token ids [B, T], in which 0 is padding."""

import flax.linen as nn
import jax.numpy as jnp

from fedjax_pfl.models.layers import Dense, Embedding
from fedjax_pfl.models.model_registry import register_model
from fedjax_pfl.models.normalization import LayerNorm
from fedjax_pfl.models.text import check_texts
from fedjax_pfl.models.vit import EncoderBlock
from fedjax_pfl.utils.errors import require, require_whole


class TextTransformer(nn.Module):
    """Token and learned positional embeddings, pre-norm transformer blocks, a final norm, a head.

    A text's features are the mean over its tokens, each of which attends to all others. With
    `per_token` every position has features, and attends to those before it and to itself. Padding
    is left out of both.

    Attributes:
      num_classes: C.
      vocab_size: number of token ids.
      hidden: d.
      depth: encoder blocks.
      heads: of each attention.
      tied: logits are products with the embeddings; there is no layer "head" then.
      initializer: "torch" or "flax".
      per_token: one output for each token instead of one for each text.
    """

    num_classes: int
    vocab_size: int
    hidden: int = 128
    depth: int = 4
    heads: int = 4
    tied: bool = False
    initializer: str = "torch"
    per_token: bool = False

    def setup(self):
        init = self.initializer
        self.embedding = Embedding(self.vocab_size, self.hidden, "flax" if self.tied else init)
        self.positions = _Positions()
        self.block = [EncoderBlock(self.heads, init) for _ in range(self.depth)]
        self.norm = LayerNorm()
        if not self.tied:
            self.head = Dense(self.num_classes, init)

    def features(self, ids):
        x, there = self.positions(self.embedding(ids)), ids != 0
        own = jnp.eye(ids.shape[1], dtype=bool)  # padding attends to itself: no row is empty
        allowed = there[:, None] | own
        if self.per_token:
            allowed &= jnp.tril(jnp.ones_like(own))
        for block in self.block:
            x = block(x, allowed)
        x = self.norm(x)
        if self.per_token:
            return x
        count = jnp.maximum(jnp.sum(there, axis=1), 1)
        total = jnp.sum(jnp.where(there[..., None], x, 0), axis=1)
        return total / count[:, None].astype(x.dtype)

    def __call__(self, ids):
        features = self.features(ids)
        if not self.tied:
            return self.head(features)
        return features @ self.embedding.variables["params"]["table"].astype(features.dtype).T


class _Positions(nn.Module):
    """Adds a learnt vector to each position of [B, T, d]."""

    @nn.compact
    def __call__(self, x):
        small = nn.initializers.normal(0.02, jnp.float32)
        return x + self.param("table", small, x.shape[1:]).astype(x.dtype)


@register_model("text_transformer")
def _text_transformer(
    input_shape,
    num_classes,
    initializer,
    *,
    vocab_size: int,
    hidden: int = 128,
    depth: int = 4,
    heads: int = 4,
    tied: bool = False,
    per_token: bool = False,
):
    """A transformer encoder of texts, or with an output for each token a causal one."""
    check_texts("text_transformer", input_shape, 1)
    for name, value in {"hidden": hidden, "depth": depth, "heads": heads}.items():
        require_whole(name, value, 1)
    require(hidden % heads == 0, "heads", heads, f"a divisor of the {hidden} hidden units")
    fits = not tied or (per_token and num_classes == vocab_size)
    require(fits, "tied", tied, "False unless the outputs are the tokens of the vocabulary")
    return TextTransformer(
        num_classes, vocab_size, hidden, depth, heads, tied, initializer, per_token
    )
