"""Saved models come back as they were, and other files are refused."""

from dataclasses import replace
from types import SimpleNamespace

import jax
import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl.results.model_files import load_models, model_axes, save_models
from tests.experiments.written_runs import finals, write_run


@pytest.fixture
def models():
    rng = np.random.default_rng(0)
    stack = {
        "params": {"fc_0": {"kernel": rng.normal(size=(2, 5, 4, 3)).astype(np.float32)}},
        "batch_stats": {"norm": {"mean": rng.normal(size=(2, 5, 3))}},
    }
    return {"personalized": stack, "global": pfl.Broadcast(jax.tree.map(lambda x: x[:, 0], stack))}


def test_round_trip(tmp_path, models):
    save_models(tmp_path / "models.npz", models)
    loaded = load_models(tmp_path / "models.npz")
    expected = {"personalized": models["personalized"], "global": models["global"].model}
    assert jax.tree.structure(loaded) == jax.tree.structure(expected)
    for new, old in zip(jax.tree.leaves(loaded), jax.tree.leaves(expected), strict=True):
        assert new.dtype == old.dtype
        np.testing.assert_array_equal(new, old)
    axes = model_axes(tmp_path / "models.npz")
    assert axes == {"personalized": ("seed", "client"), "global": ("seed",)}


def test_keys_are_the_documented_ones(tmp_path, models):
    save_models(tmp_path / "models.npz", models)
    with np.load(tmp_path / "models.npz", allow_pickle=False) as file:
        assert "personalized/params/fc_0/kernel" in file.files
        assert file["personalized/params/fc_0/kernel"].shape == (2, 5, 4, 3)
        assert file["global/params/fc_0/kernel"].shape == (2, 4, 3)
        assert str(file["axes/global"]) == "seed"


def test_a_result_is_written(tmp_path, models):
    write_run(tmp_path / "run", "fedavg", finals([0.5], [0.6]), [0, 1])
    result = pfl.Result.load(tmp_path / "run")
    kept = replace(result, final=SimpleNamespace(models=lambda: models))
    save_models(tmp_path / "models.npz", kept)
    assert set(load_models(tmp_path / "models.npz")) == {"personalized", "global"}
    swept = replace(kept, copies_up=result.copies_up.repeat(2, axis=1))
    for one, message in ((swept, "settings must be 1"), (result, "has no models")):
        with pytest.raises(pfl.InputError, match=message):
            save_models(tmp_path / "models.npz", one)


def test_types_numpy_lacks_and_lists(tmp_path):
    half = jax.numpy.ones((1, 2, 3), "bfloat16")
    save_models(tmp_path / "m.npz", {"personalized": {"params": [half, {"b": half}]}})
    loaded = load_models(tmp_path / "m.npz")["personalized"]["params"]
    assert loaded["0"].dtype == np.float32
    np.testing.assert_array_equal(loaded["1"]["b"], np.ones((1, 2, 3)))


def test_refusals(tmp_path, models):
    with pytest.raises(pfl.InputError, match=r"ends in \.npz"):
        save_models(tmp_path / "models.pkl", models)
    with pytest.raises(pfl.InputError, match="Name of a model"):
        save_models(tmp_path / "models.npz", {"a/b": models["personalized"]})
    with pytest.raises(pfl.InputError, match="No file"):
        load_models(tmp_path / "none.npz")
    np.savez(tmp_path / "other.npz", kernel=np.ones(3))
    with pytest.raises(pfl.InputError, match="isn't a file of models"):
        load_models(tmp_path / "other.npz")
    np.savez(tmp_path / "objects.npz", **{"axes/a": np.array("seed"), "a/x": np.array([None])})
    with pytest.raises(pfl.InputError, match="plain arrays"):
        load_models(tmp_path / "objects.npz")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"a/x/y": np.ones((1, 2))}, "'a/x/y' lies inside another array|'a/x' lies where other"),
        ({"a": np.ones((1, 2))}, "an array has no name of its own"),
        ({"a//z": np.ones((1, 2))}, "an array has no name of its own"),
        ({"axes/a/b": np.array("seed")}, "its arrays don't name their axes"),
        ({"b/x": np.ones((1, 2))}, "its arrays don't name their axes"),
        ({"axes/a": np.array("client")}, "'axes/a' must be 'seed' or 'seed,client'"),
        ({"axes/a": np.array([3])}, "'axes/a' must be 'seed' or 'seed,client'"),
        ({"a/z": np.ones((2, 2))}, "'a/[xz]' holds another number of seeds or clients"),
        ({"a/z": np.ones(1)}, "'a/z' holds no numbers for each seed and client"),
        ({"a/z": np.array([["x", "y"]])}, "'a/z' holds no numbers for each seed and client"),
    ],
)
def test_files_that_contradict_themselves(tmp_path, change, message):
    path = tmp_path / "models.npz"
    arrays = {"axes/a": np.array("seed,client"), "a/x": np.ones((1, 2, 3))}
    np.savez(path, **arrays)
    assert load_models(path)["a"]["x"].shape == (1, 2, 3)
    np.savez(path, **(arrays | change))
    with pytest.raises(pfl.InputError, match=rf"models\.npz isn't a file of models: ({message})"):
        load_models(path)
    np.savez(path, **(change | arrays))  # the other order, where no key is replaced
    if not set(arrays) & set(change):
        with pytest.raises(pfl.InputError, match=f"isn't a file of models: ({message})"):
            load_models(path)
