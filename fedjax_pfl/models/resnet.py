"""Residual networks."""

from collections.abc import Callable, Sequence

import flax.linen as nn

from fedjax_pfl.models.layers import Conv, Dense, global_mean, max_pool
from fedjax_pfl.models.model_registry import check_images, register_model
from fedjax_pfl.models.normalization import BatchNorm


class ConvNorm(nn.Module):
    """A convolution without bias, then batch normalization; kernels above 1x1 keep the size."""

    features: int
    kernel: int = 3
    stride: int = 1
    initializer: str = "torch"

    def setup(self):
        size = (self.kernel, self.kernel)
        self.conv = Conv(
            self.features, size, self.kernel // 2, self.initializer, self.stride, use_bias=False
        )
        self.bn = BatchNorm()

    def __call__(self, x, train: bool = False, valid=None, pool=None):
        return self.bn(self.conv(x), train, valid, pool)


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions beside a shortcut, 1x1 where size or channels change.

    Attributes:
      features: channels of its output.
      stride: of the first convolution and the shortcut.
      initializer: see `initializers`.
      layer: a normalized convolution, `ConvNorm` or another one that is made and called like it.
    """

    features: int
    stride: int = 1
    initializer: str = "torch"
    layer: Callable[..., nn.Module] = ConvNorm

    @nn.compact
    def __call__(self, x, train: bool = False, valid=None):
        init = self.initializer
        first = self.layer(self.features, 3, self.stride, init, name="first")
        second = self.layer(self.features, 3, 1, init, name="second")
        out = second(nn.relu(first(x, train, valid)), train, valid)
        if self.stride != 1 or x.shape[-1] != self.features:
            shortcut = self.layer(self.features, 1, self.stride, init, name="shortcut")
            x = shortcut(x, train, valid)
        return nn.relu(out + x)


class ResNet(nn.Module):
    """A 3x3 convolution, 3x3 max pooling of stride 2, one residual block per width, mean, head.

    All blocks but the first halve the image.
    """

    num_classes: int
    widths: Sequence[int] = (16, 32, 64)
    initializer: str = "torch"

    def setup(self):
        init = self.initializer
        self.stem = ConvNorm(self.widths[0], initializer=init)
        self.block = [
            ResidualBlock(width, 1 if i == 0 else 2, init) for i, width in enumerate(self.widths)
        ]
        self.head = Dense(self.num_classes, init)

    def features(self, x, train: bool = False, valid=None):
        x = nn.relu(self.stem(x, train, valid, lambda x: max_pool(x, 3, 2, 1)))
        for block in self.block:
            x = block(x, train, valid)
        return global_mean(x)

    def __call__(self, x, train: bool = False, valid=None):
        return self.head(self.features(x, train, valid))


@register_model("resnet8")
def _resnet8(input_shape, num_classes, initializer):
    """FedDWA's ResNet-8 for Tiny-ImageNet, with He's normal initialization as in its code."""
    check_images("resnet8", input_shape, 4)
    return ResNet(num_classes, (16, 32, 64), "kaiming" if initializer == "torch" else initializer)
