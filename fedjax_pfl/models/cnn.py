"""Convolutional networks of a few layers: convolutions, then hidden layers, then a head."""

import functools
from collections.abc import Sequence

import flax.linen as nn

from fedjax_pfl.models.dropout import Dropout
from fedjax_pfl.models.layers import Conv, Dense, max_pool
from fedjax_pfl.models.model_registry import check_dropout, check_images, register_model
from fedjax_pfl.models.normalization import BatchNorm
from fedjax_pfl.utils.errors import require_whole, unknown_name

NORMS = (None, "before_relu", "after_pool")


class CNN(nn.Module):
    """Convolutions, each followed by 2x2 max pooling and ReLU, then hidden layers and a head.

    Pooling comes before the ReLU: the two commute, and the ReLU then touches a quarter as much.

    Attributes:
      num_classes: C.
      channels: output channels of each convolution ("conv_0", "conv_1", ...).
      kernel: height and width of their kernels.
      padding: of all convolutions, or of each.
      hidden: units of the one hidden layer "fc", or of several, "fc_0", "fc_1", ...
      initializer: "torch" or "flax".
      pooled: how many of the convolutions, from the first, are pooled; all by default.
      norm: batch normalization "bn_0", "bn_1", ... of the convolutions: None, "before_relu" (right
        after the convolution) or "after_pool" (last).
      dropout: rate after the last hidden layer.
    """

    num_classes: int
    channels: Sequence[int] = (32, 64)
    kernel: int = 5
    padding: int | Sequence[int] = 0
    hidden: int | Sequence[int] = 512
    initializer: str = "torch"
    pooled: int | None = None
    norm: str | None = None
    dropout: float = 0.0

    def setup(self):
        if self.norm not in NORMS:
            raise unknown_name("place of batch normalization", self.norm, NORMS[1:])
        size, init = (self.kernel, self.kernel), self.initializer
        self.conv = [
            Conv(c, size, p, init) for c, p in zip(self.channels, _paddings(self), strict=True)
        ]
        self.bn = [BatchNorm() for _ in self.channels] if self.norm else []
        if isinstance(self.hidden, int):
            self.fc = Dense(self.hidden, init)
        else:
            self.fc = [Dense(width, init) for width in self.hidden]
        self.drop = Dropout(self.dropout)
        self.head = Dense(self.num_classes, init)

    def features(self, x, train: bool = False, valid=None):
        for i, conv in enumerate(self.conv):
            pool = max_pool if i < _pooled(self) else None
            if self.norm == "before_relu":
                x = self.bn[i](conv(x), train, valid, pool)
            else:
                x = conv(x, pool)
            x = nn.relu(x)
            if self.norm == "after_pool":
                x = self.bn[i](x, train, valid)
        x = x.reshape(x.shape[0], -1)
        for layer in [self.fc] if isinstance(self.fc, Dense) else self.fc:
            x = nn.relu(layer(x))
        return self.drop(x, deterministic=not train)

    def __call__(self, x, train: bool = False, valid=None):
        return self.head(self.features(x, train, valid))


def _paddings(net: CNN) -> tuple[int, ...]:
    if isinstance(net.padding, int):
        return (net.padding,) * len(net.channels)
    return tuple(net.padding)


def _pooled(net: CNN) -> int:
    return len(net.channels) if net.pooled is None else net.pooled


def smallest_image(net: CNN) -> int:
    """Return the fewest pixels per side for which convolutions and poolings leave at least one."""
    size = 1
    for i, padding in reversed(list(enumerate(_paddings(net)))):
        size = max((2 * size if i < _pooled(net) else size) + net.kernel - 1 - 2 * padding, 1)
    return size


def _image_model(name: str):
    """`register_model(name)` for a `CNN`, which refuses images too small for its poolings."""

    def register(make):
        @register_model(name)
        @functools.wraps(make)  # the name's description and options are those of `make`
        def checked(input_shape, *args, **options):
            net = make(input_shape, *args, **options)
            check_images(name, input_shape, smallest_image(net))
            return net

        return checked

    return register


@register_model("cnn")
def _cnn(input_shape, num_classes, initializer):
    """The 4-layer CNN of cwFedAVG and PFLlib; below 16x16 pixels a smaller one."""
    check_images("cnn", input_shape, 4)
    if min(input_shape[:2]) >= 16:
        return CNN(num_classes, (32, 64), 5, 0, 512, initializer)
    return CNN(num_classes, (16, 32), 3, 1, 64, initializer)


@_image_model("femnist_cnn")
def _femnist_cnn(input_shape, num_classes, initializer):
    """FedDWA's CNN for EMNIST (LEAF's): 32 and 64 kernels of 5x5, 2,048 hidden units."""
    return CNN(num_classes, (32, 64), 5, 0, 2048, initializer)


@_image_model("mtfl_cnn")
def _mtfl_cnn(input_shape, num_classes, initializer, *, dropout: float = 0.5):
    """FedDWA's CNN for CIFAR and CINIC (MTFL's): batch-norm after pooling, dropout 0.5."""
    dropout = check_dropout(dropout)
    return CNN(num_classes, (32, 64), 3, 0, 512, initializer, None, "after_pool", dropout)


def _lenet(num_classes, initializer, padding=0):
    return CNN(num_classes, (6, 16), 5, (padding, 0), (120, 84), initializer)


@register_model("lenet5")
def _lenet5(input_shape, num_classes, initializer):
    """WAFFLE's LeNet-5 with ReLU and max pooling; images below 32x32 are padded by 2."""
    check_images("lenet5", input_shape, 12)
    return _lenet(num_classes, initializer, 2 if min(input_shape[:2]) < 32 else 0)


@_image_model("lenet5_unpadded")
def _lenet5_unpadded(input_shape, num_classes, initializer):
    """LeNet-5 that never pads."""
    return _lenet(num_classes, initializer)


@_image_model("spfl_cnn")
def _spfl_cnn(input_shape, num_classes, initializer, *, hidden: int = 500):
    """SPFL's CNN: 20 and 50 kernels of 5x5, 500 hidden units (hidden=512 in its Table 4)."""
    return CNN(num_classes, (20, 50), 5, 0, require_whole("hidden", hidden, 1), initializer)


@_image_model("plga_cnn")
def _plga_cnn(input_shape, num_classes, initializer):
    """PLGA's nets: SPFL's CNN for grey images, an unpadded LeNet for coloured ones."""
    if len(input_shape) == 3 and input_shape[2] > 1:
        return _lenet(num_classes, initializer)
    return CNN(num_classes, (20, 50), 5, 0, 500, initializer)


def _pfedla(num_classes, initializer, norm=None):
    return CNN(num_classes, (16, 32), 5, 0, (120, 84), initializer, None, norm)


@_image_model("pfedla_lenet")
def _pfedla_lenet(input_shape, num_classes, initializer):
    """pFedLA's LeNet for EMNIST and Fashion-MNIST: 16 and 32 kernels of 5x5, no batch-norm."""
    return _pfedla(num_classes, initializer)


@_image_model("pfedla_lenet_bn")
def _pfedla_lenet_bn(input_shape, num_classes, initializer):
    """pFedLA's LeNet for CIFAR: batch-norm after each convolution."""
    return _pfedla(num_classes, initializer, "before_relu")


def _karhoutam(num_classes, initializer, norm=None):
    return CNN(num_classes, (64, 64, 128), 5, 2, (2048, 512), initializer, 2, norm)


@_image_model("pfedla_karhoutam")
def _pfedla_karhoutam(input_shape, num_classes, initializer):
    """The large CNN of a third party's pFedLA code (not the paper's), no batch-norm."""
    return _karhoutam(num_classes, initializer)


@_image_model("pfedla_karhoutam_bn")
def _pfedla_karhoutam_bn(input_shape, num_classes, initializer):
    """The same with batch-norm after each convolution, as in that code for CIFAR."""
    return _karhoutam(num_classes, initializer, "before_relu")


@_image_model("tfconvnet")
def _tfconvnet(input_shape, num_classes, initializer):
    """FedFomo's CNN: 32, 64 and 64 kernels of 3x3, the last not pooled, 64 hidden units."""
    return CNN(num_classes, (32, 64, 64), 3, 0, 64, initializer, 2)


@_image_model("sattler_convnet")
def _sattler_convnet(input_shape, num_classes, initializer):
    """Clustered FL's CNN for EMNIST: 6 and 16 kernels of 5x5, no hidden layer."""
    return CNN(num_classes, (6, 16), 5, 0, (), initializer)
