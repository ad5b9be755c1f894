"""Deep layer aggregation (Yu et al. 2018) for small images."""

from collections.abc import Sequence

import flax.linen as nn
import jax.numpy as jnp

from fedjax_pfl.models.layers import Dense, global_mean
from fedjax_pfl.models.model_registry import check_images, register_model
from fedjax_pfl.models.resnet import ConvNorm, ResidualBlock


class Tree(nn.Module):
    """Residual blocks in a row; a root of 1x1 convolutions joins their outputs.

    At level 2 a tree of level 1 comes first, and the root also gets a block on the input.
    """

    features: int
    level: int = 1
    stride: int = 1
    initializer: str = "torch"

    @nn.compact
    def __call__(self, x, train: bool = False, valid=None):
        init = self.initializer
        stride, joined = self.stride, []
        if self.level > 1:
            bypass = ResidualBlock(self.features, stride, init, name="bypass")
            joined.append(bypass(x, train, valid))
            for level in range(self.level - 1, 0, -1):
                tree = Tree(self.features, level, stride, init, name=f"level_{level}")
                x = tree(x, train, valid)
                joined.append(x)
            stride = 1
        for name in ("left", "right"):
            x = ResidualBlock(self.features, stride, init, name=name)(x, train, valid)
            joined.append(x)
            stride = 1
        root = ConvNorm(self.features, 1, 1, init, name="root")
        return nn.relu(root(jnp.concatenate(joined, axis=-1), train, valid))


class DLA(nn.Module):
    """Three 3x3 convolutions, four trees of which the last three halve the image, mean, head.

    Attributes:
      num_classes: C.
      stem: channels of the first convolutions.
      trees: (channels, level, stride) of each tree.
      initializer: "torch", "flax" or "kaiming".
    """

    num_classes: int
    stem: Sequence[int] = (16, 16, 32)
    trees: Sequence[tuple[int, int, int]] = ((64, 1, 1), (128, 2, 2), (256, 2, 2), (512, 1, 2))
    initializer: str = "torch"

    def setup(self):
        init = self.initializer
        self.conv = [ConvNorm(width, initializer=init) for width in self.stem]
        self.tree = [Tree(*tree, init) for tree in self.trees]
        self.head = Dense(self.num_classes, init)

    def features(self, x, train: bool = False, valid=None):
        for conv in self.conv:
            x = nn.relu(conv(x, train, valid))
        for tree in self.tree:
            x = tree(x, train, valid)
        return global_mean(x)

    def __call__(self, x, train: bool = False, valid=None):
        return self.head(self.features(x, train, valid))


@register_model("dla")
def _dla(input_shape, num_classes, initializer):
    """WAFFLE's network for CIFAR-10: deep layer aggregation with 16 million parameters."""
    check_images("dla", input_shape, 8)
    return DLA(num_classes, initializer=initializer)
