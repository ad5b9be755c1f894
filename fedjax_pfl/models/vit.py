"""Vision transformers."""

import flax.linen as nn
import jax
import jax.numpy as jnp

from fedjax_pfl.models.layers import Dense
from fedjax_pfl.models.model_registry import check_images, register_model
from fedjax_pfl.models.normalization import LayerNorm
from fedjax_pfl.utils.errors import InputError, require, require_whole


class Attention(nn.Module):
    """Self-attention with several heads, [B, T, d] to [B, T, d].

    `allowed` [B, T, T] or [T, T], if given, says to which positions each one attends.
    """

    heads: int
    initializer: str = "torch"

    @nn.compact
    def __call__(self, x, allowed=None):
        batch, length, width = x.shape
        three = Dense(3 * width, self.initializer, name="qkv")(x)
        three = three.reshape(batch, length, 3, self.heads, width // self.heads)
        q, k, v = (three[:, :, i] for i in range(3))
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) * (width // self.heads) ** -0.5
        exact = scores.astype(jnp.promote_types(scores.dtype, jnp.float32))
        if allowed is not None:
            allowed = allowed[:, None] if allowed.ndim == 3 else allowed
            exact = jnp.where(allowed, exact, -jnp.inf)
        weights = jax.nn.softmax(exact).astype(v.dtype)
        mixed = jnp.einsum("bhqk,bkhd->bqhd", weights, v).reshape(x.shape)
        return Dense(width, self.initializer, name="proj")(mixed)


class EncoderBlock(nn.Module):
    """x + attention(norm(x)), then x + MLP(norm(x)) with a hidden layer four times as wide."""

    heads: int
    initializer: str = "torch"

    @nn.compact
    def __call__(self, x, allowed=None):
        width, init = x.shape[-1], self.initializer
        attention = Attention(self.heads, init, name="attention")
        x = x + attention(LayerNorm(name="norm_0")(x), allowed)
        hidden = Dense(4 * width, init, name="fc_0")(LayerNorm(name="norm_1")(x))
        return x + Dense(width, init, name="fc_1")(nn.gelu(hidden, approximate=False))


class ViT(nn.Module):
    """A class token and square patches with learnt positions, encoder blocks, norm, head.

    The features are the class token's.

    Attributes:
      num_classes: C.
      patch: pixels of a patch's side.
      width: d.
      depth: encoder blocks.
      heads: of each attention.
      initializer: of dense layers, "torch" or "flax".
    """

    num_classes: int
    patch: int = 4
    width: int = 192
    depth: int = 12
    heads: int = 3
    initializer: str = "torch"

    def setup(self):
        init = self.initializer
        self.embed = _Tokens(self.width, self.patch, init)
        self.block = [EncoderBlock(self.heads, init) for _ in range(self.depth)]
        self.norm = LayerNorm()
        self.head = Dense(self.num_classes, init)

    def features(self, x):
        x = self.embed(x)
        for block in self.block:
            x = block(x)
        return self.norm(x[:, 0])

    def __call__(self, x):
        return self.head(self.features(x))


class _Tokens(nn.Module):
    """Images [B, H, W, C] to tokens [B, 1 + patches, width], the class token first."""

    width: int
    patch: int
    initializer: str

    @nn.compact
    def __call__(self, x):
        batch, height, width, channels = x.shape
        p, small = self.patch, nn.initializers.normal(0.02, jnp.float32)
        x = x.reshape(batch, height // p, p, width // p, p, channels).swapaxes(2, 3)
        x = x.reshape(batch, -1, p * p * channels)
        x = Dense(self.width, self.initializer, name="patches")(x)
        first = self.param("class_token", small, (1, 1, self.width)).astype(x.dtype)
        x = jnp.concatenate([jnp.broadcast_to(first, (batch, 1, self.width)), x], axis=1)
        return x + self.param("positions", small, (1, *x.shape[1:])).astype(x.dtype)


@register_model("vit_tiny")
def _vit_tiny(
    input_shape,
    num_classes,
    initializer,
    *,
    patch: int = 4,
    depth: int = 12,
    hidden: int = 192,
    heads: int = 3,
):
    """ViT-Tiny, patches of 4x4; patch=16 for images of 224x224 is DeiT's."""
    sizes = {"patch": patch, "depth": depth, "hidden": hidden, "heads": heads}
    for name, value in sizes.items():
        require_whole(name, value, 1)
    check_images("vit_tiny", input_shape, patch)
    if any(side % patch for side in input_shape[:2]):
        raise InputError(
            f"Model 'vit_tiny' cuts images into patches of {patch}x{patch}, and {input_shape[0]}x"
            f"{input_shape[1]} pixels aren't a multiple of it: give patch."
        )
    require(hidden % heads == 0, "heads", heads, f"a divisor of the {hidden} hidden units")
    return ViT(num_classes, patch, hidden, depth, heads, initializer)
