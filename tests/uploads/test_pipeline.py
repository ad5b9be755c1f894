"""The stage between clients and the server: its order, its memory and its refusals."""

import itertools
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_pfl.testing.toys import toy_federation
from fedjax_pfl.uploads.attacks import SignFlip
from fedjax_pfl.uploads.compression import Qsgd, TopK
from fedjax_pfl.uploads.pipeline import AdaptiveClip, ClientPrivacy, Uploads
from fedjax_pfl.uploads.secure import FixedPoint
from fedjax_pfl.uploads.stage import StageMemory, UploadInfo
from fedjax_pfl.utils import trees
from fedjax_pfl.utils.errors import InputError

M = 5
IDS = np.array([7, 2, 9, 4, 11])
MASK = np.array([True, True, True, True, False])

pytestmark = pytest.mark.usefixtures("double_precision")


def stacks(seed=0, mask=MASK):
    """(sent, reference, updates [M, d]) with two leaves, of 6 and 3 numbers; absent rows rest."""
    rng = np.random.default_rng(seed)
    shapes = {"a": (M, 2, 3), "b": (M, 3)}
    sent = {name: jnp.asarray(rng.normal(size=shape)) for name, shape in shapes.items()}
    held = {name: jnp.asarray(rng.normal(size=shape)) for name, shape in shapes.items()}
    sent = trees.where(jnp.asarray(mask), sent, held)
    return sent, held, flat(jax.tree.map(jnp.subtract, sent, held))


def flat(tree):
    return jnp.concatenate([leaf.reshape(M, -1) for leaf in jax.tree.leaves(tree)], 1)


def sending(key=0, what="model", ids=IDS, mask=MASK, **options):
    options = {"expected": 4, "weighted": jnp.asarray(mask)} | options
    key = jax.random.key(key)
    return UploadInfo(jnp.asarray(ids), jnp.asarray(mask), what=what, key=key, **options)


def received(stage, *args, memory=None, key=0, **options):
    """(the received updates [M, d], the memory after them)."""
    sent, held, _ = args or stacks()
    got, after = stage(sent, held, sending(key, **options), memory or StageMemory())
    return flat(jax.tree.map(jnp.subtract, got, held)), after


def clipped(updates, bound):
    norms = np.linalg.norm(updates, axis=1, keepdims=True)
    return updates * np.minimum(1, bound / np.where(norms > 0, norms, 1))


def private(clip=1.0, noise=0.0, **options):
    return Uploads(privacy=ClientPrivacy(clip, noise, **options))


def test_an_update_that_is_not_finite_counts_as_zero():
    sent, held, updates = stacks()
    sent["a"] = sent["a"].at[1, 0, 0].set(jnp.nan)
    got, _ = received(private(1.5), sent, held, None)
    wanted = np.array(clipped(updates, 1.5))
    wanted[1] = 0
    np.testing.assert_allclose(got, wanted, rtol=1e-12)


@pytest.mark.costly
def test_noise_has_its_deviation_and_is_independent():
    stage = private(2.0, 1.5)
    draw = jax.jit(jax.vmap(lambda key: flat_of(stage, key)))
    noise = np.array(draw(jax.random.split(jax.random.key(1), 4000)))
    noise -= clipped(stacks()[2], 2.0)
    assert not noise[:, ~MASK].any()
    noise = noise[:, MASK]
    np.testing.assert_allclose(noise.std(0), 3.0, rtol=0.06)
    together = np.corrcoef(noise.reshape(4000, -1).T) - np.eye(4 * 9)
    assert np.abs(together).max() < 5 / np.sqrt(4000)


def test_no_part_of_a_sum_is_received_without_its_noise():
    """Each row is the mean of the members that count."""
    weighted, keys = np.arange(M) < 2, jax.random.split(jax.random.key(1), 2000)
    stage = private(2.0, 1.5, placement="distributed")
    draw = jax.jit(jax.vmap(lambda key: flat_of(stage, key, jnp.asarray(weighted))))
    rows = np.array(draw(keys))
    np.testing.assert_allclose(rows[:, 0], rows[:, 1], atol=1e-12)
    assert not rows[:, 2:].any()
    noise = rows[:, 0] - clipped(stacks()[2], 2.0)[:2].mean(0)
    np.testing.assert_allclose(noise.std(0), 3.0 / 2, rtol=0.06)


def flat_of(stage, key, weighted=MASK):
    sent, held, _ = stacks()
    info = UploadInfo(jnp.asarray(IDS), jnp.asarray(MASK), jnp.asarray(weighted), "model", key)
    got, _ = stage(sent, held, info, StageMemory())
    return flat(jax.tree.map(jnp.subtract, got, held))


@pytest.mark.costly
def test_noise_follows_the_permanent_id():
    sent, held, _ = stacks()
    order = np.array([3, 0, 4, 2, 1])
    mixed = jax.tree.map(lambda leaf: leaf[order], (sent, held))
    plain, _ = received(private(1.0, 1.0))
    moved, _ = received(private(1.0, 1.0), *mixed, None, ids=IDS[order], mask=MASK[order])
    np.testing.assert_allclose(moved, plain[order], rtol=1e-12)


@pytest.mark.costly
def test_the_adaptive_bound_follows_the_papers_rule():
    """C exp(-0.2 (share of updates within C - 0.5)); the counts' noise is subtracted out here."""
    stage = private(4.0, 0.0, adaptive=AdaptiveClip(count_noise=0.0))
    _, after = received(stage, memory=stage.first_memory({}))
    norms = np.linalg.norm(stacks()[2], axis=1)[MASK]
    within = np.mean(norms <= 4.0)
    assert 0 < within < 1
    np.testing.assert_allclose(after.bound, 4.0 * np.exp(-0.2 * (within - 0.5)), rtol=1e-6)
    got, _ = received(stage, memory=StageMemory(bound=jnp.asarray(1.25)))
    np.testing.assert_allclose(got, clipped(stacks()[2], 1.25), rtol=1e-12)


@pytest.mark.costly
def test_noise_of_an_adaptive_bound():
    """Of four members: means have z_D C / 4, z_D from z = 0.3 and 2 s_b = 0.4; counts s_b."""
    stage = private(2.0, 0.3, placement="distributed", adaptive=AdaptiveClip(count_noise=0.05))
    sent, held, updates = stacks()
    memory = stage.first_memory({})

    def one(key):
        info = sending()._replace(key=key)
        got, after = stage(sent, held, info, memory)
        return flat(jax.tree.map(jnp.subtract, got, held))[0], jnp.log(after.bound / 2.0)

    got, moves = jax.jit(jax.vmap(one))(jax.random.split(jax.random.key(1), 4000))
    noise = np.asarray(got) - clipped(updates, 2.0)[MASK].mean(0)
    np.testing.assert_allclose(noise.std(), (0.3**-2 - 0.4**-2) ** -0.5 * 2.0 / 4, rtol=0.02)
    within = np.sum(np.linalg.norm(updates, axis=1)[MASK] <= 2.0)
    np.testing.assert_allclose(moves.mean(), -0.2 * (within / 4 - 0.5), atol=5 * 0.01 / 4000**0.5)
    np.testing.assert_allclose(moves.std(), 0.2 * 0.2 / 4, rtol=0.05)


@pytest.mark.costly
def test_rounding_does_not_follow_the_noise():
    """With the noise's keys, a large draw would be rounded up and a small one down."""
    privacy = ClientPrivacy(1e-9, 1e9)
    keys = jax.random.split(jax.random.key(2), 400)

    def drawn(**steps):
        stage = Uploads(privacy=privacy, **steps)
        return np.array(jax.jit(jax.vmap(lambda key: flat_of(stage, key)))(keys))[:, MASK].ravel()

    noise, few = drawn(), drawn(compressor=Qsgd(2))
    assert abs(np.mean(few[few != 0] < 0) - 0.5) < 0.05
    rounded = drawn(fixed_point=FixedPoint(32, 8.0, 16))
    assert abs(np.corrcoef(noise, rounded - noise)[0, 1]) < 0.05


@pytest.mark.costly
def test_error_feedback_sends_everything_in_time():
    """Over rounds, what was sent is what was meant minus the last error, exactly."""
    stage, memory = Uploads(compressor=TopK(0.25), feedback="ef"), None
    total, meant = 0, 0
    for round_ in range(4):
        sent, held, updates = stacks(round_, np.ones(M, bool))
        memory = stage.first_memory(held) if memory is None else memory
        got, memory = received(stage, sent, held, None, memory=memory, mask=np.ones(M, bool))
        assert (np.count_nonzero(np.abs(got) > 1e-12, axis=1) == 2 + 1).all()  # a fourth per leaf
        total, meant = total + got, meant + updates
    np.testing.assert_allclose(total, meant - flat(memory.errors), atol=1e-12)


def test_ef21_sends_changes_of_its_estimate():
    stage = Uploads(compressor=TopK(1.0), feedback="ef21")
    _, held, updates = stacks()
    estimate = jax.tree.map(lambda leaf: leaf + 1.0, held)
    got, after = received(stage, memory=StageMemory(errors=estimate))
    np.testing.assert_allclose(got, updates, atol=1e-12)
    np.testing.assert_allclose(flat(after.errors)[:4], updates[:4], atol=1e-12)
    np.testing.assert_array_equal(flat(after.errors)[4], flat(estimate)[4])  # absent


def test_uploads_counted_in_numbers_are_not_compressed():
    got, _ = received(Uploads(compressor=TopK(0.25)), compressed=False)
    np.testing.assert_allclose(got, stacks()[2], rtol=1e-12)


@pytest.mark.parametrize("attackers", [[2, 11], [2]])
def test_attackers_see_what_honest_members_send(attackers):
    """A mean of the clipped honest updates, sent by the attackers with the opposite sign.

    An absent attacker sends nothing, and an absent member is not an honest one.
    """
    stage = Uploads(
        privacy=ClientPrivacy(1.5), attack=SignFlip(of_mean=True), attackers=jnp.array(attackers)
    )
    got, _ = received(stage)
    wanted = np.array(clipped(stacks()[2], 1.5))
    wanted[1] = -wanted[[0, 2, 3]].mean(0)
    np.testing.assert_allclose(got, wanted, rtol=1e-9)
    found = [client in attackers for client in IDS]
    assert stage.attacking(jnp.asarray(IDS)).tolist() == found


def test_fixed_point_comes_last():
    stage = Uploads(fixed_point=FixedPoint(32, 8.0, 2**22))
    got, _ = received(stage)
    np.testing.assert_allclose(got, stacks()[2], atol=16 / 2**22)


def test_secure_sums_wrap_modulo():
    numbers = FixedPoint(8, 1.0, 100)
    rows = {"x": jnp.full((3, 2), 1.0)}  # 100 levels each: 300 modulo 256
    keys = jax.random.split(jax.random.key(0), 3)
    total = numbers.sum(jax.vmap(numbers.encoded)(rows, keys))
    assert np.asarray(total["x"]).tolist() == [44, 44]
    with pytest.raises(InputError, match="3 members with 100 levels wrap at 8 bits"):
        numbers.validate(3)
    with pytest.raises(InputError, match="4 members with 64 levels wrap at 8 bits"):
        FixedPoint(8, 1.0, 64).validate(4)  # 256 is one more than the largest number
    FixedPoint(8, 1.0, 51).validate(5)


@pytest.mark.costly
def test_secure_aggregation_keeps_distributed_noise():
    """Over a grid, sums of two neighbours have the noise that is promised, or are refused."""
    accepted, size = 0, 400
    grid = itertools.product((1e-3, 1.0, 8.0, 40.0), (0.5, 2.0), (0.5, 1.0, 4.0), (4, 25))
    for span, clip, noise, members in grid:
        numbers = FixedPoint(32, span, 2**16)
        try:
            numbers.check_noise(clip, noise, members, members)
        except InputError:
            continue
        accepted += 1
        stage = Uploads(
            privacy=ClientPrivacy(clip, noise, placement="distributed"), fixed_point=numbers
        )
        here, held = jnp.ones(members, bool), jnp.zeros((members, size))
        info = UploadInfo(jnp.arange(members), here, here, "model", jax.random.key(0))
        for first in (0.0, clip):
            sent = held.at[0, 0].set(first)
            total = np.sum(stage([sent], [held], info, StageMemory())[0][0], 0) - sent[0]
            np.testing.assert_allclose(np.std(total), noise * clip, rtol=0.12)
    assert accepted == 23


@pytest.mark.parametrize(
    ("numbers", "words"),
    [
        (FixedPoint(32, 1.0, 1024), r"at least 3.2 \(dp_clip and six"),
        (FixedPoint(32, 8.0, 16), "levels of secure aggregation must be at least 80"),
    ],
)
def test_secure_aggregation_refuses_to_remove_noise(numbers, words):
    with pytest.raises(InputError, match=words):
        numbers.check_noise(2.0, 1.0, 100, 100)
    numbers.check_noise(2.0, 0.0, 100, 100)


def test_whole_numbers_are_refused_under_privacy():
    sent, held, _ = stacks()
    counts = {"n": jnp.ones((M,), jnp.int32)}
    with pytest.raises(InputError, match="whole numbers, such as counts"):
        private()({**sent, **counts}, {**held, **counts}, sending(what="class_sums"), StageMemory())


def test_bytes_of_blocks():
    plan = toy_federation().plan  # blocks of 4x5 + 5 and 5x3 + 3 numbers
    assert plan.shared_block_sizes().tolist() == [25, 18]
    stage = Uploads(compressor=Qsgd(4))
    assert stage.block_bytes(plan, 4).tolist() == [(25 * 4 + 64) // 8 + 1, (18 * 4 + 64) // 8]
    assert Uploads(fixed_point=FixedPoint(20)).block_bytes(plan, 4).tolist() == [63, 45]
    assert replace(stage, compressor=None).block_bytes(plan, 4) is None


@pytest.mark.costly
def test_fixed_point_is_unbiased():
    """In float32, whose sums of a number and a lot would lose the lot's last bits."""
    with jax.enable_x64(False):
        numbers = FixedPoint()
        x = jnp.full((20_000,), 0.1, jnp.float32)
        encoded = np.asarray(numbers.encoded({"x": x}, jax.random.key(0))["x"], np.float64)
        wanted = (np.float64(np.float32(0.1)) + 8) * 2**22 / 16
        assert abs(encoded.mean() - wanted) < 0.15 + 4 / np.sqrt(20_000)
        edge = numbers.encoded({"x": jnp.full((100,), 8.0)}, jax.random.key(0))["x"]
        assert (np.asarray(edge) == 2**22).all()


def test_compressors_round_half_precision_without_bias():
    x = jnp.full((4000,), 0.3, jnp.bfloat16).at[0].set(1.0)
    sent = Qsgd(4)({"x": x}, jax.random.key(0))["x"]
    assert sent.dtype == jnp.bfloat16
    mean = np.asarray(sent, np.float64)[1:].mean()
    spread = np.asarray(sent, np.float64)[1:].std()
    assert abs(mean - float(x[1])) < 5 * spread / np.sqrt(4000) + 0.01
