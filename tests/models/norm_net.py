"""A network with batch normalization."""

import flax.linen as nn

from fedjax_pfl.models.layers import Dense
from fedjax_pfl.models.normalization import BatchNorm


class NormNet(nn.Module):
    """A linear layer, batch normalization, ReLU, a head."""

    hidden: int = 4
    num_classes: int = 3

    def setup(self):
        self.fc = Dense(self.hidden)
        self.bn = BatchNorm()
        self.head = Dense(self.num_classes)

    def __call__(self, x, train: bool = False, valid=None):
        return self.head(nn.relu(self.bn(self.fc(x), train, valid)))
