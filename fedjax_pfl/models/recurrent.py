"""Recurrent networks for texts of token ids [B, T], in which 0 is padding."""

import flax.linen as nn
import jax
import jax.numpy as jnp

from fedjax_pfl.models.layers import Dense, Embedding, initializers
from fedjax_pfl.models.model_registry import register_model
from fedjax_pfl.models.text import check_texts
from fedjax_pfl.utils.errors import require_whole


class LSTM(nn.Module):
    """One layer: [B, T, d] to all its outputs [B, T, features].

    Where `mask` [B, T] is false, the state does not change and the output is repeated. The four
    gates are concatenated: input, forget, cell, output.
    """

    features: int
    initializer: str = "torch"

    @nn.compact
    def __call__(self, x, mask):
        of_units, bias_init = initializers(self.initializer, self.features)
        size = 4 * self.features
        inner = self.param("kernel", of_units, (x.shape[-1], size)).astype(x.dtype)
        outer = self.param("recurrent", of_units, (self.features, size)).astype(x.dtype)
        bias = self.param("bias", bias_init, (size,)).astype(x.dtype)
        seen = x @ inner + bias  # of all positions at once

        def step(state, now):
            (h, c), (gates, on) = state, now
            i, f, g, o = jnp.split(gates + h @ outer, 4, axis=-1)
            cell = nn.sigmoid(f) * c + nn.sigmoid(i) * jnp.tanh(g)
            out = nn.sigmoid(o) * jnp.tanh(cell)
            state = jnp.where(on[:, None], out, h), jnp.where(on[:, None], cell, c)
            return state, state[0]

        zero = jnp.zeros((x.shape[0], self.features), x.dtype)
        _, outputs = jax.lax.scan(step, (zero, zero), (seen.swapaxes(0, 1), mask.T))
        return outputs.swapaxes(0, 1)


class CharLSTM(nn.Module):
    """Embeddings, LSTM layers, and a head on the output after the last token, or on all of them."""

    num_classes: int
    vocab_size: int
    hidden: int = 256
    embedding_size: int = 8
    layers: int = 2
    initializer: str = "torch"
    per_token: bool = False

    def setup(self):
        init = self.initializer
        self.embedding = Embedding(self.vocab_size, self.embedding_size, init)
        self.lstm = [LSTM(self.hidden, init) for _ in range(self.layers)]
        self.head = Dense(self.num_classes, init)

    def features(self, ids):
        x, mask = self.embedding(ids), ids != 0
        for layer in self.lstm:
            x = layer(x, mask)
        return x if self.per_token else x[:, -1]

    def __call__(self, ids):
        return self.head(self.features(ids))


@register_model("char_lstm")
def _char_lstm(
    input_shape,
    num_classes,
    initializer,
    *,
    vocab_size: int,
    hidden: int = 256,
    embedding: int = 8,
    layers: int = 2,
    per_token: bool = False,
):
    """LEAF's network for Shakespeare: embeddings of 8, two LSTM layers of 256."""
    check_texts("char_lstm", input_shape, 1)
    for name, value in {"hidden": hidden, "embedding": embedding, "layers": layers}.items():
        require_whole(name, value, 1)
    return CharLSTM(num_classes, vocab_size, hidden, embedding, layers, initializer, per_token)
