"""Frozen layers, which are kept once for all clients."""

import jax
import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl.engine.arguments import checked_program
from fedjax_pfl.testing.toys import OverflowingNormed, assert_close, states_of
from tests.federation.given_values import federation, initial


@pytest.mark.costly
def test_training_is_that_of_leaves_that_do_not_move():
    """Of those an algorithm may freeze, which stay in every model; the suite holds them."""
    with jax.enable_x64(True):
        kept = federation(freeze="fc_0", dtype="float64", momentum=0.5, participation=0.6)
        whole = federation(dtype="float64", momentum=0.5, participation=0.6).with_frozen("body")
        local = pfl.make_algorithm("local")
        for mine, other in zip(states_of(local, kept), states_of(local, whole), strict=True):
            assert list(mine.models["params"]) == ["head"]
            assert_close(mine.models["params"]["head"], other.models["params"]["head"], "heads")


@pytest.mark.costly
def test_frozen_layers_are_kept_once_for_each_seed():
    frozen = federation(freeze="fc_0", test_sizes=(0,) * 5)
    result = pfl.simulate(pfl.make_algorithm("local"), frozen, 1, seeds=(0, 5))
    backbone = result.final.backbone()
    for k, seed in enumerate((0, 5)):
        whole = initial(federation(), seed)["fc_0"]
        assert_close(jax.tree.map(lambda x, k=k: x[k], backbone["params"]["fc_0"]), whole, "", 0)
    assert jax.tree.map(np.shape, result.final.models())["personalized"]["params"] == {
        "head": {"bias": (2, 5, 3), "kernel": (2, 5, 5, 3)}
    }
    # Of 43 parameters, for 5 clients and 2 seeds.
    program = checked_program(pfl.make_algorithm("local"), federation(freeze="fc_0"))
    assert program.held().state == 4 * 5 * 18


@pytest.mark.costly
@pytest.mark.parametrize("name", ["fedrod", "apfl", "moon", "fedproto", "pfedhn", "fedbabu"])
def test_other_tasks_are_made_of_what_is_left(name):
    one = federation(freeze="fc_0", compute_dtype="bfloat16")
    if name == "fedbabu":  # freezes the head: nothing would be left
        with pytest.raises(pfl.InputError, match="this network is only a head"):
            pfl.Simulation(pfl.make_algorithm(name), one).lower(jax.local_devices()[:1])
    else:
        pfl.Simulation(pfl.make_algorithm(name), one).lower(jax.local_devices()[:1])


def test_a_frozen_head_has_no_personal_one_beside_it():
    with pytest.raises(pfl.InputError, match="A frozen head can't have a personal one beside it"):
        pfl.Simulation(pfl.make_algorithm("fedrod"), federation(freeze="head")).check()


def test_frozen_statistics_stay_too():
    one = federation(model=OverflowingNormed(3, (5,)), freeze="fc_0,bn")
    assert one.plan.paths == ("params/head/bias", "params/head/kernel")
    backbone = jax.eval_shape(lambda: one.with_backbone(jax.random.key(0)).backbone)
    assert set(backbone) == {"params", "batch_stats"}
    pfl.Simulation(pfl.make_algorithm("fedavg"), one).lower(jax.local_devices()[:1])


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("conv", "Unknown pattern of layers 'conv'. .*Valid: all, body, fc_0, head"),
        ("fc_0,conv_*", r"Unknown pattern of layers 'conv_\*'"),
        ("fc_0,head", "fc_0,head can't be frozen: nothing of the model would be trained"),
        ("all", "all can't be frozen"),
    ],
)
def test_patterns_are_checked(rule, message):
    with pytest.raises(pfl.InputError, match=message):
        federation(freeze=rule)
