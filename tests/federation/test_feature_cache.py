"""Features of a frozen body that are computed once."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl.data.npz import read_arrays
from fedjax_pfl.models.networks import CNN
from fedjax_pfl.testing.toys import Overflowing, OverflowingNormed, assert_close, toy_federation
from tests.models.small import small_federation

BODY = {
    "fc_0": {
        "kernel": np.random.default_rng(3).normal(size=(4, 5)),
        "bias": np.arange(5.0) / 5,
    }
}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDJAX_PFL_CACHE", str(tmp_path / "features"))
    return tmp_path / "features"


def federation(**options):
    given = {
        "freeze": "body",
        "initial_model": BODY,
        "partial": True,
        "momentum": 0.5,
        "participation": 0.6,
    }
    return toy_federation(**given | options)


@pytest.mark.costly
@pytest.mark.parametrize("name", ["fedavg", "fedrod"])
def test_runs_are_those_of_the_whole_network(name):
    with jax.enable_x64(True):
        algorithm = pfl.make_algorithm(name)
        plain, cached = federation(), federation(cache_features=True)
        assert cached.data.samples.shape == (len(plain.data.samples), 5)
        assert cached.num_frozen == plain.num_frozen == 25
        runs = [pfl.simulate(algorithm, one, 2, seeds=(0, 1)) for one in (cached, plain)]
        mine, other = ((run.scores, run.clients, run.final.states) for run in runs)
        assert_close(mine, other, "scores and states")
        if name == "fedrod":
            return
        assert_close(runs[0].final.backbone(), runs[1].final.backbone(), "backbone", 0)
        samples = np.random.default_rng(0).normal(size=(3, 4))
        mine, other = (run.predict(1, samples, outputs=True) for run in runs)
        np.testing.assert_allclose(mine, other, 1e-9)


@pytest.mark.costly
def test_the_file_is_of_the_samples_and_weights(folder):
    plain = federation(dtype="float32", cache_features=True)
    (file,) = folder.iterdir()
    rows = read_arrays(file)["features"]
    np.testing.assert_array_equal(rows, plain.data.samples)
    np.savez(file, features=rows + 1)
    again = federation(dtype="float32", cache_features=True, local_steps=3)
    np.testing.assert_array_equal(again.data.samples, rows + 1)
    file.write_bytes(b"damaged")
    again = federation(dtype="float32", cache_features=True)
    np.testing.assert_array_equal(again.data.samples, rows)
    other = {"fc_0": {**BODY["fc_0"], "bias": np.zeros(5)}}
    federation(dtype="float32", cache_features=True, initial_model=other)
    federation(dtype="float32", cache_features=True, seed=1)
    assert len(list(folder.iterdir())) == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"freeze": None}, "needs features that no client trains: freeze all layers but the head"),
        ({"lora_rank": 2}, "needs features that no client trains"),
        ({"initial_model": None, "partial": False}, "no values of params/fc_0/"),
        (
            {"model": OverflowingNormed(3, (5,)), "freeze": "fc_0,bn"},
            "no values of batch_stats/bn/mean, .* and others",
        ),
        (
            {
                "model": OverflowingNormed(3, (5,)),
                "freeze": "fc_0,bn",
                "initial_model": {
                    "params": {**BODY, "bn": {"scale": np.ones(5), "bias": np.zeros(5)}},
                    "batch_stats": {"bn": {"mean": np.zeros(5), "var": np.ones(5)}},
                },
            },
            "the same in training and evaluation, without dropout or batch normalization",
        ),
        ({"augment": lambda key, x: x}, "combined with an augmentation, a backdoor or rotated"),
        (
            {"model": (lambda key, x: {"w": np.zeros((4, 3))}, lambda w, x: x @ w["w"]),
             "freeze": None, "initial_model": None, "partial": False},
            "does not define its features and its head",
        ),
    ],
)  # fmt: skip
def test_what_is_refused(options, message):
    with pytest.raises(pfl.InputError, match=message):
        federation(**{"dtype": "float32", "cache_features": True} | options)


def test_dropout_below_the_head_is_refused():
    net, options = CNN(3, (), hidden=5, dropout=0.5), {"dtype": "float32"}
    values = jax.jit(small_federation(net, **options).initial_model)(jax.random.key(5))
    with pytest.raises(pfl.InputError, match="the same in training and evaluation"):
        small_federation(net, freeze="body", initial_model=values, cache_features=True, **options)


class RarelySkipping(Overflowing):
    """A layer is skipped in training, too rarely for a comparison of values to find it."""

    def features(self, x, train: bool = False):
        features = super().features(x)
        if not train:
            return features
        return jnp.where(jax.random.uniform(self.make_rng("dropout")) < 1e-7, 0, features)

    def __call__(self, x, train: bool = False):
        return self.head(self.features(x, train))


def test_features_that_are_rarely_random_are_refused():
    with pytest.raises(pfl.InputError, match="the same in training and evaluation"):
        federation(dtype="float32", cache_features=True, model=RarelySkipping(3, (5,)))
