"""PyTorch's layers in evaluation mode as NumPy loops, channels first: for tests without PyTorch."""

import numpy as np


def conv2d(x, state, name, padding=0, stride=1):
    """x [B, C, H, W]."""
    weight, bias = state[f"{name}.weight"], state.get(f"{name}.bias")
    x = np.pad(x, ((0, 0), (0, 0), (padding, padding), (padding, padding)))
    out, _, kh, kw = weight.shape
    rows, columns = (x.shape[2] - kh) // stride + 1, (x.shape[3] - kw) // stride + 1
    y = np.zeros((len(x), out, rows, columns))
    for i in range(rows):
        for j in range(columns):
            window = x[:, :, i * stride : i * stride + kh, j * stride : j * stride + kw]
            y[:, :, i, j] = np.tensordot(window, weight, ((1, 2, 3), (1, 2, 3)))
    return y if bias is None else y + bias[:, None, None]


def linear(x, state, name):
    y = x @ state[f"{name}.weight"].T
    return y + state[f"{name}.bias"] if f"{name}.bias" in state else y


def batch_norm(x, state, name):
    """x [B, C, ...]."""
    names = ("running_mean", "running_var", "weight", "bias")
    spread = (-1,) + (1,) * (x.ndim - 2)
    mean, var, scale, bias = (state[f"{name}.{one}"].reshape(spread) for one in names)
    return (x - mean) / np.sqrt(var + 1e-5) * scale + bias


def max_pool(x):
    batch, channels, height, width = x.shape
    x = x[:, :, : height // 2 * 2, : width // 2 * 2]
    return x.reshape(batch, channels, height // 2, 2, width // 2, 2).max((3, 5))


def wide_max_pool(x):
    """3x3 of stride 2, padded by 1."""
    x = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)), constant_values=-np.inf)
    rows, columns = ((size - 3) // 2 + 1 for size in x.shape[2:])
    shifted = [
        x[:, :, i : i + 2 * rows : 2, j : j + 2 * columns : 2] for i in range(3) for j in range(3)
    ]
    return np.max(shifted, axis=0)


def flatten(x):
    return x.reshape(len(x), -1)


def relu(x):
    return np.maximum(x, 0)


def lstm(x, state, name):
    """x [B, T, d] to the last output [B, h] of the stack's layers."""

    def sigmoid(v):
        return 1 / (1 + np.exp(-v))

    layer = 0
    while f"{name}.weight_ih_l{layer}" in state:
        inner, outer, first, second = (
            state[f"{name}.{part}_l{layer}"]
            for part in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        )
        h = c = np.zeros((len(x), outer.shape[1]))
        outputs = []
        for t in range(x.shape[1]):
            gates = x[:, t] @ inner.T + first + h @ outer.T + second
            i, f, g, o = np.split(gates, 4, axis=1)
            c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
            h = sigmoid(o) * np.tanh(c)
            outputs.append(h)
        x, layer = np.stack(outputs, 1), layer + 1
    return x[:, -1]


def state_of(seed=0, **shapes):
    """A `state_dict` of random float32 values; layers with weights of one axis have statistics.

    Args:
      seed: of the values.
      **shapes: of the weights by layer.
    """
    rng = np.random.default_rng(seed)
    state = {}
    for name, shape in shapes.items():
        of_norm = len(shape) == 1
        state[f"{name}.weight"] = rng.normal(size=shape) / max(np.prod(shape[1:]), 1) ** 0.5
        state[f"{name}.bias"] = 0.1 * rng.normal(size=shape[:1])
        if of_norm:
            state[f"{name}.running_mean"] = rng.normal(size=shape)
            state[f"{name}.running_var"] = rng.uniform(0.5, 2, shape)
            state[f"{name}.num_batches_tracked"] = np.asarray(7)
    return {name: np.asarray(value, np.float32) for name, value in state.items()}
