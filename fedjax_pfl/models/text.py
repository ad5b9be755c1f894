"""Networks for texts of token ids [B, T], in which 0 is padding."""

from collections.abc import Sequence

import flax.linen as nn
import jax
import jax.numpy as jnp

from fedjax_pfl.models.dropout import Dropout
from fedjax_pfl.models.layers import Conv, Dense, Embedding
from fedjax_pfl.models.model_registry import check_dropout, register_model
from fedjax_pfl.utils.errors import InputError, require_whole


class FastText(nn.Module):
    """Mean of the embeddings over all positions, padding included; a linear layer; a head."""

    num_classes: int
    vocab_size: int
    hidden: int = 512
    initializer: str = "torch"

    def setup(self):
        self.embedding = Embedding(self.vocab_size, self.hidden, self.initializer)
        self.fc = Dense(self.hidden, self.initializer)
        self.head = Dense(self.num_classes, self.initializer)

    def features(self, ids):
        return self.fc(jnp.mean(self.embedding(ids), axis=1))

    def __call__(self, ids):
        return self.head(self.features(ids))


class TextCNN(nn.Module):
    """Convolutions of several widths over the embeddings, ReLU, maximum over time, dropout, head.

    Attributes:
      num_classes: C.
      vocab_size: number of token ids.
      hidden: size of an embedding.
      channels: kernels of each width.
      widths: of the convolutions "conv_0", "conv_1", ...
      dropout: rate before the head.
      initializer: "torch" or "flax".
    """

    num_classes: int
    vocab_size: int
    hidden: int = 512
    channels: int = 100
    widths: Sequence[int] = (3, 4, 5)
    dropout: float = 0.8
    initializer: str = "torch"

    def setup(self):
        init = self.initializer
        self.embedding = Embedding(self.vocab_size, self.hidden, init)
        self.conv = [Conv(self.channels, (width, 1), 0, init) for width in self.widths]
        self.drop = Dropout(self.dropout)
        self.head = Dense(self.num_classes, init)

    def features(self, ids, train: bool = False):
        x = self.embedding(ids)[:, :, None]
        # The maximum before the ReLU: the two commute.
        x = jnp.concatenate([conv(x, _over_time) for conv in self.conv], axis=-1)
        return self.drop(nn.relu(x), deterministic=not train)

    def __call__(self, ids, train: bool = False):
        return self.head(self.features(ids, train))


def _over_time(x: jax.Array) -> jax.Array:
    """Take the maximum over the positions: [B, T, 1, C] to [B, C]."""
    return x.max(axis=(1, 2))


def check_texts(name: str, input_shape: tuple[int, ...], shortest: int) -> None:
    """Raise `InputError` unless samples are texts of at least `shortest` tokens."""
    if len(input_shape) != 1 or input_shape[0] < shortest:
        raise InputError(
            f"Model {name!r} takes texts [length] of at least {shortest} tokens; the data set's "
            f"samples have the shape {input_shape}."
        )


@register_model("fasttext")
def _fasttext(input_shape, num_classes, initializer, *, vocab_size: int, hidden: int = 512):
    """PFLlib's fastText: mean of embeddings, one linear layer of 512 units."""
    check_texts("fasttext", input_shape, 1)
    return FastText(num_classes, vocab_size, require_whole("hidden", hidden, 1), initializer)


@register_model("textcnn")
def _textcnn(
    input_shape,
    num_classes,
    initializer,
    *,
    vocab_size: int,
    hidden: int = 512,
    dropout: float = 0.8,
):
    """PFLlib's TextCNN: 100 kernels each of widths 3, 4 and 5 over embeddings of 512."""
    check_texts("textcnn", input_shape, 5)
    dropout = check_dropout(dropout)
    return TextCNN(
        num_classes,
        vocab_size,
        require_whole("hidden", hidden, 1),
        dropout=dropout,
        initializer=initializer,
    )
