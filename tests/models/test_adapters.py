"""Low-rank adapters on the dense layers of networks, attention's among them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl.models.networks import ViT
from fedjax_pfl.testing.toys import toy_federation
from tests.models.small import small_federation, trained


def federation(**options):
    return toy_federation(**{"dtype": "float32", "validation_size": 0, "lora_rank": 2} | options)


def begun(one):
    """(the federation of a run, its first model)."""
    key = jax.random.key(0)
    return jax.jit(
        lambda: (one.with_backbone(key), one.initial_model(pfl.utils.keys.derive(key, "init")))
    )()


def test_a_layer_with_an_adapter_by_hand():
    one, model = begun(federation(lora_alpha=6.0))
    assert one.plan.paths == (
        "params/fc_0/lora_a", "params/fc_0/lora_b", "params/head/bias", "params/head/kernel"
    )  # fmt: skip
    assert one.plan.num_parameters == 4 * 2 + 2 * 5 + 18 and one.num_frozen == 25
    x = jnp.asarray(np.random.default_rng(0).normal(size=(3, 4)), jnp.float32)
    plain, first = begun(federation(lora_rank=None))
    np.testing.assert_array_equal(one.task.predict(model, x), plain.task.predict(first, x))
    b = jnp.ones((2, 5))
    params = model["params"]
    moved = {**params, "fc_0": {**params["fc_0"], "lora_b": b}}
    whole = one.backbone["params"]["fc_0"]
    kernel = whole["kernel"] + 6.0 / 2 * params["fc_0"]["lora_a"] @ b
    hidden = jnp.maximum(x @ kernel + whole["bias"], 0)
    wanted = hidden @ params["head"]["kernel"] + params["head"]["bias"]
    np.testing.assert_allclose(one.task.predict({"params": moved}, x), wanted, 1e-5, 1e-5)


@pytest.mark.costly
def test_clients_train_adapters_beside_one_backbone():
    net = ViT(3, patch=3, width=4, depth=1, heads=2)
    options = {"client_execution": "vmap", "dtype": "float32", "local_steps": 2}
    one = small_federation(net, lora_rank=1, lora_layers="*qkv,*proj", **options)
    names = {path for path in one.plan.paths if "lora" in path}
    at = "params/block_0/attention"
    assert names == {f"{at}/{layer}/lora_{x}" for layer in ("qkv", "proj") for x in "ab"}
    models = trained(jax.jit(one.with_backbone)(jax.random.key(0)))["params"]
    first = jax.jit(one.initial_model)(jax.random.key(7))["params"]
    moved = jax.tree.map(lambda a, b: not np.array_equal(a[0], b), models, first)
    # With B = 0 the first step moves B, the second one A too.
    assert all(jax.tree.leaves(moved))
    pfl.Simulation(pfl.make_algorithm("fedrod"), federation()).lower(jax.local_devices()[:1])
    assert federation(freeze="all").plan.blocks == ("fc_0", "head")
    assert federation(freeze="all").plan.num_parameters == 18 + 2 * (5 + 3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lora_rank": 0}, "lora_rank must be a whole number of at least 1, got 0"),
        ({"lora_rank": None, "lora_alpha": 2.0}, "lora_alpha must be absent without lora_rank"),
        ({"lora_rank": None, "lora_layers": "fc"}, "lora_layers must be absent without lora_rank"),
        ({"lora_layers": "head"}, "groups for adapters that 'head' names; .*: fc_0"),
        ({"freeze": "all,*lora_?"}, "must be a rule that leaves something to train, got 'all,"),
        ({"freeze": "body,*lora_b"}, "freeze must be without lora_b: these factors are zero"),
        ({"share": "*lora_c"}, r"Unknown pattern of layers '\*lora_c'"),
        ({"freeze": "none"}, r"groups for adapters that '\*' names\."),
        (
            {"model": (lambda key, x: {"w": jnp.zeros((4, 3))}, lambda w, x: x @ w["w"])},
            "There is no frozen dense layer or convolution",
        ),
    ],
)
def test_what_can_not_be(options, message):
    with pytest.raises(pfl.InputError, match=message):
        federation(**options)


@pytest.mark.costly
def test_a_fixed_factor_is_in_the_backbone():
    fixed = federation(freeze="body,*lora_a")
    assert fixed.plan.paths == ("params/fc_0/lora_b", "params/head/bias", "params/head/kernel")
    assert fixed.num_frozen == 25 + 4 * 2
    one, model = begun(fixed)
    every, first = begun(federation())
    factor = one.backbone["params"]["fc_0"]["lora_a"]
    np.testing.assert_array_equal(factor, first["params"]["fc_0"]["lora_a"])
    x = jnp.asarray(np.random.default_rng(0).normal(size=(3, 4)), jnp.float32)
    np.testing.assert_array_equal(one.task.predict(model, x), every.task.predict(first, x))
    assert federation(freeze="*lora_a").plan == fixed.plan


def test_one_factor_is_shared():
    one = federation(share="*lora_a")
    shared = dict(zip(one.plan.paths, one.plan.shared, strict=True))
    assert [path for path, on in shared.items() if on] == ["params/fc_0/lora_a"]
    assert one.plan.shared_block_sizes().tolist() == [8, 0]
    notes = pfl.make_algorithm("fedper").remarks(one)
    assert notes == ["shares *lora_a, as set by share"]
    both = federation(share="head,*lora_a").plan
    assert both.shared == (True, False, True, True)
