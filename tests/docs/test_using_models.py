"""The Python of docs/using_models.md runs as written, on the run that its command makes."""

import jax
import numpy as np
import pytest

import fedjax_pfl as pfl
from experiments import run
from tests.docs import pages

pytestmark = pytest.mark.costly  # a whole run

PAGE = (pages.ROOT / "docs/using_models.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def names(tmp_path_factory):
    """What the blocks define, one after the other."""
    place, names = tmp_path_factory.mktemp("models"), {}
    command, *_ = pages.commands(PAGE)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        words = [*command.words[3:], "--rounds=2", "--nokeep_state", "--compilation_cache="]
        assert run.main(["run", *words]) == 0
        pages.run_python("docs/using_models.md", names)
        names["result"] = pfl.Result.load("runs/models/feddwa")
    return names


def test_predictions_are_those_that_the_run_scored(names):
    right = np.mean(names["predict"](names["images"]) == names["labels"])
    wanted = names["result"].accuracy()[names["seed"], 0, -1, names["client"]]
    assert right == pytest.approx(wanted) and len(names["labels"]) > 5


def test_a_result_predicts_without_files(names):
    assert names["classes"].shape == (len(names["images"]),)
    np.testing.assert_array_equal(names["logits"].argmax(axis=-1), names["classes"])


def test_what_is_exported_says_the_same_of_any_number_of_images(names):
    for count in (1, 4):
        some = names["images"][:count]
        np.testing.assert_array_equal(names["exported"].call(some), names["predict"](some))
    assert set(names["exported"].platforms) == {"cpu", "cuda", "tpu"}


def test_models_out_of_a_result_and_a_file(names):
    """One with adapters predicts as its result and federation."""
    wanted = names["trained"].predict(names["client"], names["images"], outputs=True)
    np.testing.assert_allclose(names["outputs"], wanted, rtol=1e-4, atol=1e-5)
    assert names["again"].initial_match.drawn == ()
    dataset, key = names["dataset"], jax.random.key(0)
    options = {"lora_rank": 2, "lora_alpha": 6.0, "input_scaling": "raw"}
    federation = pfl.federate(dataset, names["partition"], "mlp", **options).with_backbone(key)
    model = jax.tree.map(lambda leaf: leaf + 0.1, federation.initial_model(key))
    assert "lora_b" in model["params"]["fc_0"] and "kernel" not in model["params"]["fc_0"]
    images = names["images"][:3] / 16
    joined = federation.network.bound({}, federation.backbone).plain(model)
    got = names["network"].apply(joined, images)
    np.testing.assert_allclose(got, federation.task.predict(model, images), rtol=1e-4, atol=1e-5)


def test_the_file_says_the_same(names, tmp_path, monkeypatch):
    pytest.importorskip("flatbuffers")
    monkeypatch.chdir(tmp_path)
    (block,) = [one.text for one in pages.blocks(PAGE) if one.need]
    exec(compile(block, "using_models.md", "exec"), names)
    some = names["images"][:3]
    np.testing.assert_array_equal(names["again"].call(some), names["predict"](some))
