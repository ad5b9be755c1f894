"""Networks for texts by hand, and dropout where they are evaluated."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_pfl.models.networks import FastText, TextCNN, make_model
from fedjax_pfl.models.task import LinenTask
from fedjax_pfl.testing.toys import assert_close


def test_fasttext_is_a_mean_of_embeddings():
    ids = jnp.array([[1, 2, 0, 0], [3, 3, 3, 4]])
    net = FastText(3, 5, 6)
    weights = jax.jit(net.init)(jax.random.key(0), ids)
    w = jax.tree.map(np.asarray, weights["params"])
    mean = w["embedding"]["table"][np.asarray(ids)].sum(1) / 4
    hidden = mean @ w["fc"]["kernel"] + w["fc"]["bias"]
    wanted = hidden @ w["head"]["kernel"] + w["head"]["bias"]
    np.testing.assert_allclose(jax.jit(net.apply)(weights, ids), wanted, rtol=1e-5, atol=1e-5)


def test_textcnn_by_hand():
    ids = jnp.array([[1, 2, 0, 4, 1, 0], [3, 3, 3, 4, 2, 1]])
    net = TextCNN(3, 5, hidden=4, channels=2)
    weights = jax.jit(net.init)(jax.random.key(0), ids)
    w = jax.tree.map(np.asarray, weights["params"])
    x = w["embedding"]["table"][np.asarray(ids)]
    result = []
    for i, width in enumerate((3, 4, 5)):
        kernel = w[f"conv_{i}"]["kernel"][:, 0]
        over_time = [
            np.einsum("bkh,khc->bc", x[:, t : t + width], kernel) + w[f"conv_{i}"]["bias"]
            for t in range(6 - width + 1)
        ]
        result.append(np.maximum(over_time, 0).max(0))
    wanted = np.concatenate(result, -1) @ w["head"]["kernel"] + w["head"]["bias"]
    np.testing.assert_allclose(jax.jit(net.apply)(weights, ids), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.costly
def test_evaluation_drops_nothing():
    net = make_model("textcnn", (6,), 3, vocab_size=9, hidden=2)
    ids = jnp.arange(12).reshape(2, 6) % 9
    model = jax.jit(net.init)(jax.random.key(0), ids)
    task = LinenTask(net)
    plain = jax.jit(net.clone(dropout=0.0).apply, static_argnums=2)(model, ids, True)
    assert_close(jax.jit(task.predict)(model, ids), plain, "evaluation", 1e-6)
    train = jax.jit(task.apply, static_argnums=2)
    dropped = train(model, ids, True, jax.random.key(1), None).logits
    assert not np.allclose(dropped, plain)
