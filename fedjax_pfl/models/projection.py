"""Projection of a network's features before its head, as in contrastive methods."""

import inspect

import flax.linen as nn

from fedjax_pfl.models.layers import Dense


class Projection(nn.Module):
    """A linear layer of its input's width, ReLU, and a linear layer: [B, d] to [B, width]."""

    width: int
    initializer: str = "torch"

    @nn.compact
    def __call__(self, x):
        x = nn.relu(Dense(x.shape[-1], self.initializer, name="first")(x))
        return Dense(self.width, self.initializer, name="second")(x)


class Projected(nn.Module):
    """A network whose head classifies a projection of its features. All layers keep their names.

    Attributes:
      network: a linen module with a method `features` and a layer `head` of any width.
      width: of the projection, whose outputs are the features.
      initializer: "torch" or "flax".
    """

    network: nn.Module
    width: int = 256
    initializer: str = "torch"

    def setup(self):
        nn.share_scope(self, self.network)
        self.projection = Projection(self.width, self.initializer)
        self.head = self.network.head

    def features(self, x, train: bool = False, valid=None):
        known = inspect.signature(self.network.features).parameters
        mode = {"train": train, "valid": valid}
        x = self.network.features(x, **{name: mode[name] for name in mode if name in known})
        return self.projection(x)

    def __call__(self, x, train: bool = False, valid=None):
        return self.head(self.features(x, train, valid))
