"""Combinations of options in which an algorithm could go wrong silently."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl.engine.program import Program
from fedjax_pfl.engine.runs import make_runs
from fedjax_pfl.testing.toys import assert_close, run_rounds, states_of, toy_federation, toy_for
from fedjax_pfl.utils import trees
from tests.engine.finals import final_in
from tests.models.norm_net import NormNet

BESIDE_FEDAVG = [("fedexp", {"epsilon": 0.0}), ("fedsam", {"rho": 5.0})]


@pytest.mark.costly
@pytest.mark.parametrize(("name", "settings"), BESIDE_FEDAVG)
def test_running_statistics_are_those_of_fedavg(name, settings):
    """A longer step of the server, or perturbed models, are none of theirs."""
    options = {"batch_norm": "shared", "validation_size": 0, "local_steps": 1}
    federation = toy_federation(model=NormNet(), **options)
    ours, plain = (
        states_of(pfl.make_algorithm(*made), federation, 1)[-1].server["batch_stats"]
        for made in ((name, settings), ("fedavg",))
    )
    assert_close(ours, plain, "statistics")


@pytest.mark.costly
def test_averaged_running_variances_of_spfl():
    """One client's inputs are ten times as large: stepping statistics would go below zero."""
    federation = toy_federation(
        (12,) * 5,
        (3,) * 5,
        model=NormNet(),
        batch_norm="shared",
        local_epochs=5,
        learning_rate=0.1,
    )
    samples, train = np.asarray(federation.data.samples).copy(), federation.data.train
    samples[np.asarray(train.index)[int(train.offset[2]) :][:12]] *= 10
    federation = replace(federation, data=replace(federation.data, samples=jnp.asarray(samples)))
    states = states_of(pfl.make_algorithm("spfl"), federation, rounds=5)
    for state in states:
        assert (state.models["batch_stats"]["bn"]["var"] > 0).all()


@pytest.mark.costly
def test_stages_of_spfl_by_name_of_the_head():
    """Two stages of one block each: which of them is called the head changes no weight."""
    algorithm = pfl.make_algorithm("spfl", {"weighting": "paper"})
    first, last = (
        run_rounds(algorithm, toy_federation(head=head), rounds=1, scored=())[1][0]["matrices"][
            "mixing"
        ]
        for head in ("fc_0", "head")
    )
    np.testing.assert_allclose(first, last, 1e-12)
    assert abs(first[0] - first[1]).max() > 1e-3


@pytest.mark.costly
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", sorted(pfl.core.ALGORITHMS))
def test_dtypes_of_states(name, dtype):
    """Though 64-bit types are on, nothing becomes one; traced only.

    pFedFDA's covariances need float32 at least.
    """
    algorithm = pfl.make_algorithm(name)
    federation = algorithm.prepare(toy_for(algorithm, dtype=dtype))
    program = Program(make_runs(algorithm, federation, [0]), federation, 1)
    shapes = jax.eval_shape(program.function("start"), program.runs, federation, np.int32(1))
    for leaf in jax.tree.leaves(shapes):
        if jnp.issubdtype(leaf.dtype, jnp.floating):
            assert leaf.dtype == dtype or (name, leaf.dtype) == ("pfedfda", "float32")
    after = jax.eval_shape(lambda states: program.advance(states, 0, 1)[0], shapes)
    assert jax.tree.map(lambda x: x.dtype, after) == jax.tree.map(lambda x: x.dtype, shapes)


@pytest.mark.costly
@pytest.mark.parametrize(
    "name", ["fedavg_async", "plga", "fedavg_sync", "fedasync", "lga", "perfedavg_async"]
)
def test_private_statistics_of_late_clients(name):
    federation = toy_federation(model=NormNet(), batch_norm="affine_shared", stragglers={1: 1})
    algorithm = pfl.make_algorithm(name)
    states = states_of(algorithm, federation, rounds=3)
    first, last = states[0].server, states[-1].server
    np.testing.assert_array_equal(
        last["batch_stats"]["bn"]["mean"], first["batch_stats"]["bn"]["mean"]
    )
    assert abs(last["params"]["bn"]["scale"] - first["params"]["bn"]["scale"]).max() > 0
    means = states[-1].trained["batch_stats"]["bn"]["mean"]
    assert abs(means[0] - means[3]).max() > 1e-6  # each has its own
    # They go on from round to round: a second round moves them from where the first one left.
    before = states[1].trained["batch_stats"]["bn"]["mean"][0]
    assert abs(means[0] - before).max() > 0
    # Nobody has the statistics for the server's model, so it is none to be scored.
    assert "global" not in jax.eval_shape(final_in(states[-1], algorithm, federation, 3).models)


@pytest.mark.costly
def test_mixing_row_of_a_client_that_keeps_its_model():
    """It shares no class with the cohort, so no class model has anything for it."""
    federation = toy_federation(seed=2, participation=0.2)
    algorithm = pfl.make_algorithm("cwfedavg", {"shares": "labels", "wdr_weight": 0})
    (record,) = run_rounds(algorithm, federation, rounds=1, scored=())[1]
    np.testing.assert_allclose(record["matrices"]["mixing"].sum(axis=1), 1)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("ditto", {"share": "body"}),
        ("pfedme", {"model": NormNet(), "batch_norm": "affine_shared"}),
        ("apfl", {"model": NormNet(), "batch_norm": "affine_shared"}),
    ],
)
def test_new_client_start_with_private_leaves(name, options):
    """The server's model and the mean of private leaves, not of models that stay with clients."""
    algorithm, key, t = pfl.make_algorithm(name), jax.random.key(0), jnp.int32(0)
    federation = algorithm.prepare(toy_federation(**options))

    @jax.jit
    def start():
        cohort = federation.participation.cohort(key, t, federation.data.ids)
        ctx = pfl.Context(federation, key, t, t + 1, cohort)
        state, kept = algorithm.init(ctx), jnp.arange(5.0)
        private = jax.tree.map(lambda x: x + trees.expand_to(x, kept), state.private)
        found = algorithm.new_client_start(ctx, replace(state, private=private))
        return ctx.plan.split(found), ctx.plan.split(ctx.initial_model())

    (shared, private), (first, before) = start()
    assert_close(shared, first, "the server's", 0)
    assert_close(private, jax.tree.map(lambda x: x + 2, before), "private ones")
