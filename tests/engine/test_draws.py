"""A run in single precision draws the same numbers where JAX has 64-bit types."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl.engine.runs import make_runs
from fedjax_pfl.testing.toys import Overflowing, toy_federation, toy_for

# Options with draws of their own.
OPTIONS = {"fedprox": {"slow_fraction": 0.5}, "ifca": {"initial": "group_warmup"}}
DRAWING = pfl.dataset_from_arrays(
    "images", np.zeros((12, 20, 20, 3), np.uint8), np.arange(12) % 3, num_classes=3
)
TEXTS = pfl.dataset_from_arrays(
    "texts", np.ones((12, 8), np.int32), np.arange(12) % 3, num_classes=3, vocab_size=9
)
OF_TEXTS = ("char_lstm", "fasttext", "textcnn", "text_transformer")
HALVES = pfl.Partition.from_lists(train=[[0, 1, 2], [3, 4, 5, 6]], test=[[7, 8], [9, 10, 11]])


def first_run(runs):
    return jax.tree.map(lambda leaf: leaf[0], runs)


def traced(algorithm, federation):
    """The program of the first round as text, where JAX has 64-bit types."""

    def first_round(run, federation):
        ctx = run.context(federation, jnp.int32(0), jnp.int32(2))
        return run.algorithm.round(ctx, run.algorithm.init(ctx))

    federation = algorithm.prepare(federation)
    run = first_run(make_runs(algorithm, federation, (0,)))
    return str(jax.make_jaxpr(first_round)(run, federation))


def widths_of_draws(text):
    return set(re.findall(r"random_bits\[\s*bit_width=(\d+)", text))


@pytest.mark.parametrize("name", sorted(pfl.core.ALGORITHMS))
def test_every_draw_of_an_algorithm_names_its_type(name):
    algorithm = pfl.make_algorithm(name, OPTIONS.get(name))
    own = {} if algorithm.batch_norm == "local" else {"model": Overflowing(3, (5,))}
    with jax.enable_x64(True):
        federation = toy_for(algorithm, participation=0.6, local_epochs=2, dtype="float32", **own)
        assert widths_of_draws(traced(algorithm, federation)) == {"32"}


@pytest.mark.parametrize(
    ("name", "init", "options"),
    [
        ("mtfl_cnn", "torch", {}),
        ("textcnn", "torch", {"hidden": 4}),
        ("char_lstm", "torch", {"hidden": 4}),
        ("text_transformer", "torch", {"hidden": 4, "depth": 1}),
        ("vit_tiny", "torch", {"depth": 1}),
        ("mlp", "flax", {}),
    ],
)
def test_every_draw_of_a_network_names_its_type(name, init, options):
    data, augment = (TEXTS, None) if name in OF_TEXTS else (DRAWING, "crop_flip")
    with jax.enable_x64(True):
        federation = pfl.federate(
            data,
            HALVES,
            name,
            augment=augment,
            batch_size=2,
            initializer=init,
            model_options=options,
        )
        text = traced(pfl.make_algorithm("local"), federation)
    assert widths_of_draws(text) == {"32"}


def test_every_draw_of_adapters_names_its_type():
    with jax.enable_x64(True):
        federation = toy_federation(dtype="float32", lora_rank=2)
        assert widths_of_draws(traced(pfl.make_algorithm("local"), federation)) == {"32"}


def test_cohorts_and_first_models_are_the_same_with_64_bit_types():
    def drawn():
        federation = toy_federation((4,) * 9, participation=0.4, dtype="float32")
        run = first_run(make_runs(pfl.make_algorithm("fedavg"), federation, (3,)))

        @jax.jit
        def of_round(t):
            ctx = run.context(federation, t, jnp.int32(8))
            return ctx.cohort.rows, ctx.cohort.order(ctx.key_for("order")), ctx.initial_model()

        return [of_round(np.int32(t)) for t in range(3)]

    single = drawn()
    with jax.enable_x64(True):
        double = drawn()
    jax.tree.map(np.testing.assert_array_equal, single, double)
