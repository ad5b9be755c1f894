"""A frozen base in fewer bits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl.engine.arguments import checked_program
from fedjax_pfl.models.base_types import Quantized, held, restored
from fedjax_pfl.testing.toys import toy_federation

TYPES = ("bfloat16", "int8")


def values(rng=None):
    rng = rng or np.random.default_rng(3)
    return {
        "fc_0/kernel": rng.normal(size=(4, 5)).astype(np.float32),
        "fc_0/bias": rng.normal(size=5).astype(np.float32),
    }


def federation(base_dtype=None, **options):
    given = {"dtype": "float32", "validation_size": 0, "freeze": "fc_0"} | options
    return toy_federation(**given, base_dtype=base_dtype)


def test_integers_are_within_half_a_step_of_each_column():
    kernel = np.random.default_rng(0).normal(size=(3, 4, 6)).astype(np.float32)
    kernel *= np.array([1, 10, 0.01, 0, 1, 1], np.float32)
    integers, scale = held(kernel, "int8")
    assert integers.dtype == jnp.int8 and scale.shape == (6,)
    np.testing.assert_allclose(scale[:3], np.abs(kernel).max((0, 1))[:3] / 127, 1e-6)
    error = np.abs(np.asarray(restored(Quantized(integers, scale), jnp.float32)) - kernel)
    assert (error <= 0.5001 * np.asarray(scale)).all() and not error[..., 3].any()


@pytest.mark.parametrize(("base_dtype", "bias"), [("bfloat16", "bfloat16"), ("int8", "float32")])
def test_biases_and_integers(base_dtype, bias):
    assert held(np.ones(3, np.float32), base_dtype).dtype == bias
    assert held(np.ones((2, 2), np.int32), base_dtype).dtype == np.int32


@pytest.mark.costly
@pytest.mark.parametrize("base_dtype", TYPES)
def test_a_run_is_that_of_the_rounded_base(base_dtype):
    """Drawn bases too; the backbone of a result is complete, and new clients use it."""
    trained, new = pfl.split_new_clients(federation(base_dtype, momentum=0.5), 2)
    fedavg = pfl.make_algorithm("fedavg")
    result = pfl.simulate(fedavg, trained, 2)
    layer = result.final.backbone()["params"]["fc_0"]
    assert layer["kernel"].dtype == layer["bias"].dtype == jnp.float32
    given = {f"fc_0/{name}": np.asarray(leaf[0]) for name, leaf in layer.items()}
    plain, others = pfl.split_new_clients(
        federation(momentum=0.5, initial_model=given, partial=True), 2
    )
    wanted = pfl.simulate(fedavg, plain, 2)
    for mine, other in zip(
        *(jax.tree.leaves(one.final.models()) for one in (result, wanted)), strict=True
    ):
        np.testing.assert_allclose(mine, other, 1e-5, 1e-6)
    scores = [
        pfl.score_new_clients(one.final, clients, steps=(1,))
        for one, clients in ((result, new), (wanted, others))
    ]
    np.testing.assert_array_equal(scores[0], scores[1])
    sample = np.asarray(trained.data.samples[:2])
    outputs = [one.final.predict(0, 0, sample) for one in (result, wanted)]
    np.testing.assert_allclose(outputs[0], outputs[1], 1e-5, 1e-6)


@pytest.mark.costly
def test_memory_and_identity():
    ditto, given = pfl.make_algorithm("ditto"), values()
    plain, half, low = (
        pfl.Simulation(ditto, federation(one, initial_model=given, partial=True))
        for one in (None, *TYPES)
    )
    data = [checked_program(ditto, one.federation).held().data for one in (plain, half, low)]
    assert data[0] - data[1] == 2 * 25 and data[0] - data[2] == 3 * 20 - 4 * 5
    assert {one.federation.num_frozen for one in (plain, half, low)} == {25}
    assert len({one.federation.network for one in (plain, half, low)}) == 3
    state = jax.eval_shape(low.federation.with_backbone, jax.random.key(0)).backbone
    assert state["params"]["fc_0"]["kernel"].integers.shape == (4, 5)  # no axis of clients


@pytest.mark.costly
def test_adapters_and_low_precision_computation():
    one = federation("int8", freeze=None, lora_rank=1, compute_dtype="bfloat16")
    pfl.Simulation(pfl.make_algorithm("fedrod"), one).lower(jax.local_devices()[:1])
    x = np.ones((2, 4), np.float32)
    bound = jax.jit(one.with_backbone)(jax.random.key(0))
    outputs = jax.jit(lambda key: bound.task.predict(bound.initial_model(key), x))
    assert np.isfinite(outputs(jax.random.key(0))).all()


@pytest.mark.parametrize(
    ("algorithm", "options", "message"),
    [
        ("fedavg", {"base_dtype": "float16"}, "Unknown base dtype 'float16'"),
        ("fedavg", {"freeze": None}, "base_dtype must be absent without frozen layers"),
        ("flora", {"freeze": None, "lora_rank": 1}, "flora adds to the frozen kernels"),
        (
            "fedavg",
            {"cache_features": True, "initial_model": values(), "partial": True},
            "base_dtype must be absent with cache_features",
        ),
    ],
)  # fmt: skip
def test_what_is_refused(algorithm, options, message):
    with pytest.raises(pfl.InputError, match=message):
        one = federation(**{"base_dtype": "int8"} | options)
        pfl.Simulation(pfl.make_algorithm(algorithm), one).check()
