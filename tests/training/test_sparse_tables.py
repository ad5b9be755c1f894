"""Steps that change only the looked-up rows of embedding tables."""

from functools import partial

import jax
import numpy as np
import pytest

from fedjax_pfl.models.networks import CharLSTM, FastText, TextTransformer
from fedjax_pfl.models.sparse_embeddings import sparse_tables
from fedjax_pfl.models.task import LinenTask
from fedjax_pfl.testing.toys import assert_close
from fedjax_pfl.training.local_step import LocalStep
from tests.models.small import small_federation, trained


def federation(net, **options):
    """Minibatches of two texts of six tokens, some of them twice and some padding."""
    return small_federation(net, tokens=True, local_steps=3, **options)


@pytest.mark.costly
@pytest.mark.parametrize(
    ("net", "options"),
    [
        (FastText(3, 40, 4), {"client_execution": "vmap"}),
        (CharLSTM(3, 40, hidden=3, embedding_size=2), {"learning_rate_decay": 0.5}),
    ],
)
def test_a_step_is_that_with_whole_gradients(net, options, monkeypatch):
    with jax.enable_x64(True):
        one = federation(net, **options)
        model = one.initial_model(jax.random.key(7))
        before = model["params"]["embedding"]["table"]
        models = trained(one)
        monkeypatch.setattr(LocalStep, "_is_plain_sgd", property(lambda step: False))
        assert_close(models, trained(one), "models")
    table = np.asarray(models["params"]["embedding"]["table"])
    moved = (table != np.asarray(before)).any(-1)
    assert 3 < moved.sum() < 27 and not moved[:, 0].any()


def _total(net, ids, params):
    return LinenTask(net).predict({"params": params}, ids).sum()


def _tables_of(net, ids):
    params = net.init(jax.random.key(0), ids)["params"]
    return sparse_tables(partial(_total, net, ids), params)


def test_only_plain_sgd_on_large_tables_is_sparse():
    net = FastText(3, 40, 4)

    def plain(**options):
        return LocalStep(federation(net, dtype="float32", **options), 0.1)._is_plain_sgd

    assert plain()
    for options in ({"momentum": 0.5}, {"weight_decay": 0.1}, {"clip_norm": 1.0},
                    {"optimizer": "adam"}):  # fmt: skip
        assert not plain(**options)
    ids = np.ones((2, 6), np.int32)
    for net, wanted in (
        (FastText(3, 40, 4), {("embedding",): (2, 6, 4)}),
        (FastText(3, 20, 4), {}),
        (TextTransformer(40, 40, 4, 1, 2, per_token=True), {("embedding",): (2, 6, 4)}),
        (TextTransformer(40, 40, 4, 1, 2, tied=True, per_token=True), {}),
    ):
        zeros = jax.eval_shape(partial(_tables_of, net), ids)
        assert {path: x.shape for path, x in zeros.items()} == wanted
