"""What rounds draw, upload and add to losses, from their traces.

In single precision they draw the same numbers where JAX has 64-bit types.
"""

import re
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl.engine.runs import make_runs
from fedjax_pfl.testing.toys import Overflowing, toy_federation, toy_for
from fedjax_pfl.uploads.stage import UploadStage

# Options with draws of their own, and other uploads.
OPTIONS = {
    "fedprox": {"slow_fraction": 0.5},
    "ifca": {"initial": "group_warmup"},
    "cwfedavg": {"wdr_weight": 0},  # else it takes no extra loss
}
SENDING = [("feddwa", {"guidance": "last"}), ("l2c", {"weights": "attention"})]
SENDING += [("lg_fedavg", {"warmup_rounds": 2})]
SENDING += [(name, OPTIONS.get(name, {})) for name in sorted(pfl.core.ALGORITHMS)]
QUICK = ("fedprox", "lg_fedavg", "scaffold")
SENDING = [
    pytest.param(*one, marks=[pytest.mark.costly] * (one[0] not in QUICK)) for one in SENDING
]
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


def traced(algorithm, federation, changed=lambda federation: federation):
    """The program of the first round as text, where JAX has 64-bit types."""

    def first_round(run, federation):
        ctx = run.context(changed(federation), jnp.int32(0), jnp.int32(2))
        return run.algorithm.round(ctx, run.algorithm.init(ctx))

    federation = algorithm.prepare(federation)
    run = first_run(make_runs(algorithm, federation, (0,)))
    return str(jax.make_jaxpr(first_round)(run, federation))


def widths_of_draws(text):
    return set(re.findall(r"random_bits\[\s*bit_width=(\d+)", text))


@pfl.core.struct
class Listed(UploadStage):
    """Notes the names of uploads while a round is traced."""

    names: list = pfl.core.static(default=None)

    def __call__(self, sent, reference, sending, memory):
        whole = not all(jnp.issubdtype(x.dtype, jnp.inexact) for x in jax.tree.leaves(sent))
        self.names.append((sending.what, whole))
        return sent, memory


class Called(pfl.training.ExtraLoss):
    """Notes its calls while a round is traced."""

    def __init__(self):
        self.calls = 0

    def __call__(self, params, batch, client, plan):
        self.calls += 1
        return jnp.float32(0)


class _Names(list):
    __hash__ = object.__hash__


@pytest.mark.parametrize(("name", "options"), SENDING)
def test_draws_uploads_and_extra_losses_of_a_round(name, options):
    algorithm, names, extra = pfl.make_algorithm(name, options), _Names(), Called()
    own = {} if algorithm.batch_norm == "local" else {"model": Overflowing(3, (5,))}
    with jax.enable_x64(True):
        federation = toy_for(
            algorithm, participation=0.6, local_epochs=2, dtype="float32",
            extra_loss=pfl.training.WeightDistribution(10.0), **own,
        )  # fmt: skip
        algorithm.check(algorithm.prepare(federation))
        stage = Listed(names)

        def changed(federation):
            return replace(federation, uploads=stage).replace_training(extra_loss=extra)

        assert widths_of_draws(traced(algorithm, federation, changed)) == {"32"}
    assert extra.calls
    assert bool(names) == (algorithm.server_needs != "nothing")


@pytest.mark.costly
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
