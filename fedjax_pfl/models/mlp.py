"""Fully connected networks."""

from collections.abc import Sequence

import flax.linen as nn

from fedjax_pfl.models.layers import Dense
from fedjax_pfl.models.model_registry import register_model
from fedjax_pfl.utils.errors import require_whole


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


@register_model("mlp")
def _mlp(input_shape, num_classes, initializer, *, hidden: int = 64):
    """One hidden layer of 64 ReLU units."""
    return MLP(num_classes, (require_whole("hidden", hidden, 1),), initializer)


@register_model("softmax")
def _softmax(input_shape, num_classes, initializer):
    """Softmax regression: no hidden layer."""
    return MLP(num_classes, (), initializer)
