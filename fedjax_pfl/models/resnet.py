"""Residual networks, with batch or group normalization."""

from collections.abc import Sequence

import flax.linen as nn

from fedjax_pfl.models.layers import Conv, Dense, global_mean, max_pool
from fedjax_pfl.models.model_registry import check_images, register_model
from fedjax_pfl.models.normalization import BatchNorm, GroupNorm
from fedjax_pfl.utils.errors import require, require_name, require_whole

STEMS = ("small", "large")


class ConvNorm(nn.Module):
    """A convolution without bias, then normalization; odd kernels keep the size.

    Attributes:
      features: channels of its output.
      kernel: height and width of the kernel.
      stride: along height and width.
      initializer: see `initializers`.
      groups: of group normalization; 0 for batch normalization, after which it may pool.
    """

    features: int
    kernel: int = 3
    stride: int = 1
    initializer: str = "torch"
    groups: int = 0

    def setup(self):
        size = (self.kernel, self.kernel)
        self.conv = Conv(
            self.features, size, self.kernel // 2, self.initializer, self.stride, use_bias=False
        )
        if self.groups:
            self.gn = GroupNorm(self.groups)
        else:
            self.bn = BatchNorm()

    def __call__(self, x, train: bool = False, valid=None, pool=None):
        x = self.conv(x)
        return self.gn(x) if self.groups else self.bn(x, train, valid, pool)


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions beside a shortcut, 1x1 where size or channels change."""

    features: int
    stride: int = 1
    initializer: str = "torch"
    groups: int = 0

    @nn.compact
    def __call__(self, x, train: bool = False, valid=None):
        options = (self.initializer, self.groups)
        first = ConvNorm(self.features, 3, self.stride, *options, name="first")
        second = ConvNorm(self.features, 3, 1, *options, name="second")
        out = second(nn.relu(first(x, train, valid)), train, valid)
        if self.stride != 1 or x.shape[-1] != self.features:
            shortcut = ConvNorm(self.features, 1, self.stride, *options, name="shortcut")
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


class ResNet18(nn.Module):
    """A stem, two residual blocks for each width, mean, head.

    The first block of every width but the first halves the image.

    Attributes:
      num_classes: C.
      widths: channels of the four stages.
      large: begin with a 7x7 convolution of stride 2 and 3x3 max pooling of stride 2, for large
        images; otherwise with a 3x3 convolution.
      groups: of group normalization; 0 for batch normalization.
      initializer: "torch" or "flax".
    """

    num_classes: int
    widths: Sequence[int] = (64, 128, 256, 512)
    large: bool = False
    groups: int = 0
    initializer: str = "torch"

    def setup(self):
        init, groups = self.initializer, self.groups
        kernel, stride = (7, 2) if self.large else (3, 1)
        self.stem = ConvNorm(self.widths[0], kernel, stride, init, groups)
        self.block = [
            ResidualBlock(width, 2 if i > 0 and first else 1, init, groups)
            for i, width in enumerate(self.widths)
            for first in (True, False)
        ]
        self.head = Dense(self.num_classes, init)

    def features(self, x, train: bool = False, valid=None):
        x = nn.relu(self.stem(x, train, valid))
        if self.large:
            x = max_pool(x, 3, 2, 1)
        for block in self.block:
            x = block(x, train, valid)
        return global_mean(x)

    def __call__(self, x, train: bool = False, valid=None):
        return self.head(self.features(x, train, valid))


def _made(name, input_shape, num_classes, initializer, stem, groups) -> ResNet18:
    require_name(f"stem of {name!r}", stem, STEMS)
    check_images(name, input_shape, 32 if stem == "large" else 8)
    return ResNet18(num_classes, large=stem == "large", groups=groups, initializer=initializer)


@register_model("resnet18")
def _resnet18(input_shape, num_classes, initializer, *, stem: str = "small"):
    """ResNet-18; stem=small as usual for CIFAR, stem=large as torchvision's for ImageNet."""
    return _made("resnet18", input_shape, num_classes, initializer, stem, 0)


@register_model("resnet18_gn")
def _resnet18_gn(input_shape, num_classes, initializer, *, stem: str = "small", groups: int = 2):
    """ResNet-18 with group normalization, of two groups as in adaptive federated optimization."""
    require_whole("groups", groups, 1)
    require(64 % groups == 0, "groups", groups, "a divisor of 64")
    return _made("resnet18_gn", input_shape, num_classes, initializer, stem, groups)
