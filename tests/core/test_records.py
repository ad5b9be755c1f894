"""Records and saved models say what happened, also where shapes could be mistaken."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_pfl as pfl
from experiments.outputs import run_files
from fedjax_pfl.engine.costs import forward_flops
from fedjax_pfl.testing.toys import TRAIN_SIZES, toy_federation
from fedjax_pfl.training.scoring import loss_matrix
from fedjax_pfl.utils.structs import struct
from tests.algorithms.field import ValidationLosses


def context(t=0):
    """A round of a federation of five clients, of which three take part."""
    federation, key = toy_federation(participation=0.6, dtype="float32"), jax.random.key(0)
    cohort = jax.jit(federation.participation.cohort)(key, np.int32(t), federation.data.ids)
    return pfl.Context(federation, key, jnp.int32(0), jnp.int32(1), cohort)


@pytest.mark.costly
def test_a_cohort_of_one_is_no_identity():
    with jax.enable_x64(True):
        federation = toy_federation(participation=0.2, validation_size=0)
        result = pfl.simulate(pfl.make_algorithm("fedavg"), federation, 1)
        matrix = result.matrices["mixing"]
        assert matrix.shape == (1, 1, 1, 1, 5)
        assert "forward_samples" not in result.clients and result.flops_per_forward is None
        assert not {"numbers_up", "numbers_down"} & result.clients.keys()
        np.testing.assert_array_equal(matrix[0, 0, 0, 0], result.clients["participated"][0, 0, 0])


def test_matrices_of_all_clients_and_of_the_members_that_all_mix():
    ctx = context()
    cohort, whole = ctx.cohort, np.arange(1, 26, dtype=np.float32).reshape(5, 5)
    whole[3] = 0
    matrices = {"whole": whole, "members": whole[:, cohort.rows]}
    record = jax.jit(partial(ctx.record, cohort, everyone_mixes=True))(**matrices)
    wanted = np.array(whole)
    wanted[3] = np.eye(5)[3]  # it kept its model
    np.testing.assert_array_equal(record.matrices["whole"], wanted)
    absent = ~np.isin(np.arange(5), cohort.rows)
    wanted[:3, absent] = wanted[4, absent] = 0
    np.testing.assert_array_equal(record.matrices["members"], wanted)
    assert "self_weight" not in record.clients  # of which of the two?


def test_self_weights_of_every_form_of_a_matrix():
    ctx = context(3)
    whole, rows = np.arange(1, 26, dtype=np.float32).reshape(5, 5), np.asarray(ctx.cohort.rows)
    np.testing.assert_array_equal(rows, [1, 3, 4])
    members = whole[rows][:, rows]
    other = members * [[1, 1, 1], [0, 0, 0], [-1, 1, 1]]
    blocks = np.stack([members, np.eye(3, dtype=np.float32)])

    @jax.jit
    def self_weights():
        def recorded(mixing, cohort=ctx.cohort, **more):
            mixing = jnp.asarray(mixing)
            return ctx.record(cohort, mixing=mixing, **more).clients.get("self_weight")

        everyone, lost = (
            {"everyone_mixes": True},
            ctx.cohort.mark_diverged(np.array([True, False, True])),
        )
        return {
            "other": recorded(other, other=whole[rows]),
            "rows": recorded(whole[rows]),
            "all": recorded(whole, **everyone),
            "columns": recorded(whole[:, rows], **everyone),
            "blocks": recorded(blocks),
            "lost": recorded(members, lost),
            "vector": recorded(members[0]),
            "told": recorded(members, clients={"self_weight": jnp.zeros(3)}),
        }

    result = {name: np.asarray(one) for name, one in self_weights().items() if one is not None}
    assert "vector" not in result
    absent = ~np.isin(np.arange(5), rows)
    assert all(np.isnan(one[absent]).all() for one in result.values())

    def wanted(matrix):
        return whole[rows, rows] / abs(matrix).sum(axis=1)

    np.testing.assert_allclose(result["other"][rows], wanted(members) * [1, 0, 1] + [0, 1, 0], 1e-6)
    np.testing.assert_allclose(result["rows"][rows], wanted(whole[rows]), 1e-6)
    np.testing.assert_allclose(result["all"][rows], wanted(whole[rows]), 1e-6)
    np.testing.assert_allclose(result["columns"][rows], wanted(members), 1e-6)
    sizes = ctx.federation.plan.shared_block_sizes()
    mean = (sizes[0] * wanted(members) + sizes[1]) / sizes.sum()
    np.testing.assert_allclose(result["blocks"][rows], mean, 1e-6)
    np.testing.assert_array_equal(np.isnan(result["lost"][rows]), [False, True, False])
    np.testing.assert_array_equal(result["told"][rows], 0)


@struct
class Scoring(ValidationLosses):
    """Candidates are scored in every second round."""

    def round(self, ctx, state):
        active = ctx.cohort.mask & (ctx.t % 2 == 0)
        losses = ctx.loss_matrix(state.models, split="validation", active=active)
        choice = jnp.zeros((ctx.cohort.size, 2), jnp.int32)
        ctx.loss_matrix(state.models, split="train", choice=choice, active=active)
        trained, cohort, _ = ctx.train(ctx.cohort.gather(state.models))
        models = cohort.scatter(state.models, trained)
        return replace(state, models=models), ctx.record(cohort, scalars={"sum": jnp.sum(losses)})


@pytest.mark.costly
def test_forward_passes_of_candidates_are_counted_by_themselves(tmp_path):
    """Two validation samples of each client; what a client is absent from, it does not score."""
    nobody = {"test_sizes": (0,) * 5, "dtype": "float32"}  # fewer scores: a smaller program
    federation = toy_federation(participation=0.6, **nobody)
    result = pfl.simulate(ValidationLosses(), federation, 2, chunk=2)
    late = toy_federation(stragglers={1: 1}, **nobody)
    every_other = pfl.simulate(Scoring(), late, 4, chunk=4)
    present = result.clients["participated"]
    np.testing.assert_array_equal(result.clients["forward_samples"], present * 5 * 2)
    steps = result.clients["local_steps"] * result.flops_per_step
    assert result.flops_per_forward == forward_flops(federation) > 0
    wanted = steps + present * 10 * result.flops_per_forward
    np.testing.assert_array_equal(result.flops(), wanted)
    assert result.computation()["forward_samples_per_client_round"] == 10
    of_a_client = wanted.sum() / present.sum() / 1e9
    assert result.computation()["gflop_per_client_round"] == pytest.approx(of_a_client)
    replace(result, algorithm="scored").save(tmp_path / "there")
    np.testing.assert_array_equal(pfl.Result.load(tmp_path / "there").flops(), wanted)
    # Client 1 starts in round 1 and is in step in round 3, or not at all.
    sizes = np.array(TRAIN_SIZES)
    due = np.array([1, 0, 1, 0])[:, None] * every_other.clients["participated"][0, 0]
    np.testing.assert_array_equal(
        every_other.clients["forward_samples"][0, 0], due * (5 * 2 + 2 * sizes)
    )
    assert (every_other.scalars["sum"][0, 0] > 0).tolist() == [True, False, True, False]


@struct
class WithinABranch(ValidationLosses):
    def round(self, ctx, state):
        none = jnp.zeros((ctx.cohort.size, ctx.num_clients))
        jax.lax.cond(ctx.t == 0, lambda: ctx.loss_matrix(state.models), lambda: none)
        return state, ctx.record(ctx.cohort)


def test_within_a_branch_nobody_knows_how_often():
    text = r"lax\.cond, loop or vmap: take ctx\.when, or call it outside, with active=\[M\]"
    with pytest.raises(TypeError, match=text):
        pfl.Simulation(WithinABranch(), toy_federation(dtype="float32")).estimate_memory()


def test_scores_of_more_passes_than_can_be_counted_are_refused():
    federation = toy_federation(dtype="float32")
    few = jax.ShapeDtypeStruct((1, 2**29), jnp.int32)
    with pytest.raises(pfl.InputError, match="samples times candidates must be below 2,147"):
        loss_matrix(federation, jnp.zeros(3), jnp.arange(1), split="test", choice=few)


@struct
class Sending(ValidationLosses):
    """Sends nothing but numbers, 2^28 times its row's; receives two models and 7 numbers."""

    def round(self, ctx, state):
        numbers = ctx.cohort.rows * 2**28
        return state, ctx.record(ctx.cohort, up=0, down=2, numbers_up=numbers, numbers_down=7)


@pytest.mark.costly
def test_numbers_beside_the_model_are_bytes_of_its_type(tmp_path):
    """Bytes of 32 bits would wrap; what is absent receives nothing."""
    nobody = {"test_sizes": (0,) * 5, "dtype": "float32"}
    federation = toy_federation(participation=0.8, **nobody)
    result = replace(pfl.simulate(Sending(), federation, 2, chunk=2), algorithm="sending")
    rows, present = np.arange(5), result.clients["participated"]
    assert result.clients["numbers_up"].dtype == np.int32
    up, down = 4 * 2**28 * rows * present, (2 * 43 * 4 + 7 * 4) * present
    np.testing.assert_array_equal(result.traffic()["up"], up)
    np.testing.assert_array_equal(result.traffic()["down"], down)
    assert result.traffic_mb_per_client_round()["up"] == up.sum() / present.sum() / 1e6
    result.save(tmp_path / "there")
    loaded = pfl.Result.load(tmp_path / "there")
    np.testing.assert_array_equal(loaded.traffic()["up"], up)
    metrics = {(t, name): value for _, t, name, value in run_files.metric_rows(result)}
    for t in (1, 2):
        assert metrics[t, "numbers_up"] == 2**28 * (rows * present[0, 0, t - 1]).sum()
        assert metrics[t, "traffic/down_bytes"] == down[0, 0, t - 1].sum()


def test_copies_are_whole_numbers():
    ctx = context()
    cohort = ctx.cohort
    with pytest.raises(pfl.InputError, match=r"must be whole numbers, got '0\.5'"):
        ctx.record(cohort, down=0.5)
    with pytest.raises(pfl.InputError, match=r"Shape of clients\['spread'\] must be \[3\], one"):
        ctx.record(cohort, clients={"spread": jnp.zeros((3, 2))})
    with pytest.raises(pfl.InputError, match=r"Shape of scalars\['mean'\] must be \(\)"):
        ctx.record(cohort, scalars={"mean": jnp.zeros(2)})
    for shape, everyone in (((5, 5), False), ((2, 2), False), ((3, 3), True), ((1, 3), False)):
        with pytest.raises(pfl.InputError, match="Shape of the matrix 'memory' must be"):
            ctx.record(cohort, everyone_mixes=everyone, memory=jnp.zeros(shape))


def test_numbers_of_sparse_and_quantised_uploads():
    ctx = context()
    assert [ctx.numbers_of(values, 8) for values in (0, 1, 4, 5)] == [0, 1, 1, 2]
    sparse = ctx.numbers_of(jnp.array([0, 3, 2**30 + 7], jnp.int32), 33)
    wanted = [-(-values * 33 // 32) for values in (0, 3, 2**30 + 7)]
    np.testing.assert_array_equal(sparse, wanted)  # values * bits would overflow
    with pytest.raises(pfl.InputError, match="bits"):
        ctx.numbers_of(4, 0)
