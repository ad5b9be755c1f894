"""Your own network in one file: convolutions along time, for windows of sensors' channels.

Give your file with `--import_file=FILE.py`; this one is also `example:sensor_network`.
"""

import flax.linen as nn

import fedjax_pfl as pfl
from fedjax_pfl.utils.errors import require


class SensorNetwork(nn.Module):
    """Windows [B, time, 1, channels]: two convolutions, the mean over time, a head."""

    num_classes: int
    width: int
    kernel: int

    def setup(self):
        size = (self.kernel, 1)
        self.first = nn.Conv(self.width, size, strides=(2, 1))
        self.second = nn.Conv(2 * self.width, size, strides=(2, 1))
        self.head = nn.Dense(self.num_classes)

    def features(self, x):
        x = nn.relu(self.second(nn.relu(self.first(x))))
        return x.mean(axis=(1, 2))

    def __call__(self, x):
        return self.head(self.features(x))


@pfl.models.register_model("sensor_network")
def sensor_network(input_shape, num_classes, initializer, *, width: int = 16, kernel: int = 9):
    """Two convolutions along time and their mean, initialized as Flax does."""
    windows = len(input_shape) == 3 and input_shape[1] == 1
    require(windows, "Shape of a sample", input_shape, "(time, 1, channels) for sensor_network")
    return SensorNetwork(num_classes, width, kernel)
