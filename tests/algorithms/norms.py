"""The references' network with a convolution and batch normalization, as the library has it."""

import flax.linen as nn
import jax
import numpy as np

from fedjax_pfl.models.layers import Conv
from fedjax_pfl.models.normalization import BatchNorm
from fedjax_pfl.testing.toys import assert_close
from fedjax_pfl.utils import trees
from fedjax_pfl.utils.trees import join
from tests.algorithms.harness import Case, dense
from tests.references import norm_network


class ConvNorm(nn.Module):
    """Samples of 4 numbers as images 2x2: convolution, batch normalization, tanh, head."""

    def setup(self):
        self.conv = Conv(2, (3, 3), 1)
        self.bn = BatchNorm()
        self.head = dense(3, None)

    def features(self, x, train: bool = False, valid=None):
        x = self.bn(self.conv(x.reshape(-1, 2, 2, 1)), train, valid)
        return nn.tanh(x).reshape(x.shape[0], -1)

    def __call__(self, x, train: bool = False, valid=None):
        return self.head(self.features(x, train, valid))


class NormCase(Case):
    """A `Case` of that network; the references see images."""

    def __init__(self, **options):
        super().__init__(model=ConvNorm(), **options)
        self.x = self.x.reshape(-1, 2, 2, 1)


def norm_loss(model, x, y):
    """The loss of one of the references' networks with normalization."""
    return norm_network.cross_entropy(norm_network.logits(model, x), y)[0]


def everyones(state, count):
    """What all clients hold after a round: the server's leaves and their own, [N, ...]."""
    return join(trees.replicate(state.server, count), state.private)


def layers_of(model):
    """A model of the library as the references have it: statistics beside parameters."""
    params, statistics = model["params"], model.get("batch_stats", {})
    return {
        layer: {**jax.tree.map(np.asarray, dict(leaves)), **statistics.get(layer, {})}
        for layer, leaves in params.items()
    }


def first_model(states):
    """The model that all clients begin with."""
    count = len(jax.tree.leaves(states[0].private or states[0].server)[0])
    return layers_of(jax.tree.map(lambda x: np.asarray(x[0]), everyones(states[0], count)))


def assert_everyones(state, models, what):
    """All clients' models against the reference's."""
    actual = layers_of(everyones(state, len(models)))
    wanted = jax.tree.map(lambda *leaves: np.stack(leaves), *models)
    for layer, leaves in wanted.items():
        assert_close({name: actual[layer][name] for name in leaves}, leaves, f"{what}, {layer}")
