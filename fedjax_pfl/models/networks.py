"""The networks known by name."""

from collections.abc import Callable, Sequence

import flax.linen as nn

from fedjax_pfl.errors import InputError, unknown_name
from fedjax_pfl.models.layers import Conv, Dense, max_pool

MODELS: dict[str, Callable] = {}


def model(name: str):
    """Registers `factory(input_shape, num_classes, initializer) -> linen module` under a name."""

    def register(factory):
        MODELS[name] = factory
        return factory

    return register


class MLP(nn.Module):
    """Fully connected ReLU network; `hidden` may be empty (softmax regression)."""

    num_classes: int
    hidden: Sequence[int] = (64,)
    initializer: str = "torch"

    def setup(self):
        self.fc = [Dense(width, self.initializer) for width in self.hidden]
        self.head = Dense(self.num_classes, self.initializer)

    def features(self, x):
        x = x.reshape(x.shape[0], -1)
        for layer in self.fc:
            x = nn.relu(layer(x))
        return x

    def __call__(self, x):
        return self.head(self.features(x))


class CNN(nn.Module):
    """Convolutions, each followed by 2x2 max pooling and ReLU, then one hidden layer and a head.

    Pooling comes before the ReLU: the two commute, and the ReLU then touches a quarter as much.
    """

    num_classes: int
    channels: Sequence[int] = (32, 64)
    kernel: int = 5
    padding: int = 0
    hidden: int = 512
    initializer: str = "torch"

    def setup(self):
        size = (self.kernel, self.kernel)
        self.conv = [Conv(c, size, self.padding, self.initializer) for c in self.channels]
        self.fc = Dense(self.hidden, self.initializer)
        self.head = Dense(self.num_classes, self.initializer)

    def features(self, x):
        for conv in self.conv:
            x = nn.relu(max_pool(conv(x)))
        return nn.relu(self.fc(x.reshape(x.shape[0], -1)))

    def __call__(self, x):
        return self.head(self.features(x))


@model("mlp")
def _mlp(input_shape, num_classes, initializer):
    """One hidden layer of 64 ReLU units."""
    return MLP(num_classes, (64,), initializer)


@model("softmax")
def _softmax(input_shape, num_classes, initializer):
    """Softmax regression: no hidden layer."""
    return MLP(num_classes, (), initializer)


@model("cnn")
def _cnn(input_shape, num_classes, initializer):
    """The 4-layer CNN of cwFedAVG and PFLlib; below 16x16 pixels its small sister."""
    if len(input_shape) != 3 or min(input_shape[:2]) < 4:
        raise InputError(
            "Model 'cnn' takes images [height, width, channels] of at least 4x4 pixels; the data "
            f"set's samples have the shape {tuple(input_shape)}. Use 'mlp'."
        )
    if min(input_shape[:2]) >= 16:
        return CNN(num_classes, (32, 64), 5, 0, 512, initializer)
    return CNN(num_classes, (16, 32), 3, 1, 64, initializer)


def make_model(name: str, input_shape, num_classes: int, initializer: str = "torch") -> nn.Module:
    """The network of that name for samples of `input_shape`.

    Args:
      name: one of `MODELS`.
      input_shape: shape of one sample, [height, width, channels] or [d].
      num_classes: C.
      initializer: "torch" or "flax".

    Raises:
      InputError: unknown name, or a network that cannot take such samples.
    """
    if name not in MODELS:
        raise unknown_name("model", name, MODELS)
    if initializer not in ("torch", "flax"):
        raise unknown_name("initializer", initializer, ("torch", "flax"))
    return MODELS[name](tuple(input_shape), num_classes, initializer)
