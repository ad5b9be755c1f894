"""Projection of a network's features before its head, as in contrastive methods."""

import flax.linen as nn

from fedjax_pfl.models.layers import Dense
from fedjax_pfl.utils.conversions import accepted


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
        options = accepted(self.network.features, train=train, valid=valid)
        return self.projection(self.network.features(x, **options))

    def __call__(self, x, train: bool = False, valid=None):
        return self.head(self.features(x, train, valid))
