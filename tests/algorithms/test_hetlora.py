"""HetLoRA against its reference: ranks by client, pruned and padded; FLoRA with such ranks."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl.algorithms.common.adapter_ranks import squared_norms
from fedjax_pfl.models.adapters import parse_ranks
from fedjax_pfl.testing.toys import TanhNetwork, assert_close, run_rounds, toy_federation
from fedjax_pfl.utils import keys
from tests.algorithms.harness import (
    PATTERNS,
    Case,
    assert_losses,
    initial_model,
    over,
    sampled_federation,
)
from tests.algorithms.test_fedex_lora import base_of
from tests.references import flora, hetlora

ALPHA, RANKS = 4.0, (3, 1, 4)
ADAPTERS = {"lora_ranks": "3,1,4", "lora_alpha": ALPHA}
VARIANTS = {
    "default": {},
    "size": {"weighting": "size", "gamma": 0.6, "tail_weight": 0.3, "min_rank": 2},
}


@pytest.fixture(autouse=True)
def double_precision():
    with jax.enable_x64(True):
        yield


@over(PATTERNS, [("partial-map", "default"), ("full-vmap", "size")], VARIANTS)
def test_reference(pattern, variant):
    case, settings = Case(**PATTERNS[pattern], **ADAPTERS), VARIANTS[variant]
    ids = np.asarray(case.federation.data.ids)
    ranks = [RANKS[k % 3] for k in ids]
    more = {"base": base_of(case), "factor": ALPHA / 4, "ranks": ranks, **settings}
    wanted = hetlora.run(case.initial(), case.clients(), 3, **case.common(), **more)
    states, records = case.run_rounds(pfl.make_algorithm("hetlora", settings))
    before = np.array(ranks)
    for state, record, known, t in zip(states[1:], records, wanted, range(3), strict=True):
        assert_close(state.server["params"], known["global"], "global")
        np.testing.assert_array_equal(state.ranks, known["ranks"])
        assert_losses(record, case, "personalized", known["whole"])
        after, present = np.array(known["ranks"]), np.isin(np.arange(len(ids)), case.cohorts[t])
        clients = record["clients"]
        np.testing.assert_array_equal(clients["numbers_down"], (4 + 5) * before * present)
        np.testing.assert_array_equal(clients["numbers_up"], (4 + 5) * after * present)
        np.testing.assert_array_equal(clients["rank"][present], after[present])
        before = after
    assert min(wanted[-1]["ranks"]) == 1 and sum(wanted[-1]["ranks"]) < sum(ranks)


@pytest.mark.thorough
def test_flora_takes_ranks():
    """A client's rank is by its permanent id."""
    case = Case(**PATTERNS["partial-map"], **ADAPTERS, order=(3, 0, 4, 1, 2))
    drawn = [
        initial_model(case.federation, keys.of_round(case.key, "adapters", t))["params"]["hidden"]
        for t in range(3)
    ]
    ranks = [RANKS[k % 3] for k in np.asarray(case.federation.data.ids)]
    more = {"base": base_of(case), "factor": ALPHA / 4, "ranks": ranks}
    more["drawn"] = jax.tree.map(np.asarray, drawn)
    wanted = flora.run(case.initial(), case.clients(), 3, **case.common(), **more)
    states, records = case.run_rounds(pfl.make_algorithm("flora"))
    for t, (record, known) in enumerate(zip(records, wanted, strict=True)):
        assert_close(states[t + 1].server["params"], known["global"], "global")
        np.testing.assert_allclose(states[t + 1].base["hidden"], known["base"], 0, 1e-9)
        assert_losses(record, case, "personalized", [known["whole"]] * case.num_clients)
        there = case.present(t)
        own = 9 * np.array(ranks) * there
        merged = min(4 * 5, own.sum())
        np.testing.assert_array_equal(record["clients"]["numbers_up"], own)
        np.testing.assert_array_equal(record["clients"]["rank"][there], np.array(ranks)[there])
        np.testing.assert_array_equal(record["clients"]["numbers_down"], own + merged * there)


@pytest.mark.thorough
def test_equal_ranks_without_pruning_are_fedavg():
    one = sampled_federation(lora_rank=2)
    plain, _ = run_rounds(pfl.make_algorithm("fedavg"), one)
    settings = {"gamma": 1.0, "weighting": "size"}
    ours, _ = run_rounds(pfl.make_algorithm("hetlora", settings), one)
    for state, other in zip(ours, plain, strict=True):
        assert_close(state.server, other.server, "server")
    without = sampled_federation()
    ours = pfl.make_algorithm("hetlora", settings)
    assert ours.remarks(without) == ["no adapters with both factors trained: FedAvg"]
    assert ours.remarks(one) == []


@pytest.mark.thorough
def test_new_clients_have_their_own_rank():
    trained, new = pfl.split_new_clients(
        toy_federation(model=TanhNetwork(), validation_size=0, dtype="float32", **ADAPTERS), 2
    )
    for name in ("hetlora", "flora"):
        result = pfl.simulate(pfl.make_algorithm(name), trained, 2)
        models = result.final.personalize(new)["params"]["hidden"]
        for k, client in enumerate(np.asarray(new.data.ids)):
            used = np.any(np.asarray(models["lora_a"])[0, k] != 0, axis=0)
            assert used.sum() == RANKS[client % 3] == np.argmin([*used, False])


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ("2,4,8", (2, 4, 8)),
        ((5, 1), (5, 1)),
        ("2:50%,4:25%,8:25%", (2, 4, 8, 2)),
        ("1:100%", (1,)),
        ("2:75%, 8:25%", (2, 2, 8, 2)),
    ],
)
def test_ranks_in_turn(given, wanted):
    assert parse_ranks(given) == wanted


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lora_ranks": "2,x"}, "lora_ranks must be ranks such as 2,4,8, or with shares"),
        ({"lora_ranks": "2,0"}, "lora_ranks must be ranks"),
        ({"lora_ranks": ()}, "lora_ranks must be ranks"),
        ({"lora_ranks": 2.5}, "lora_ranks must be ranks"),
        ({"lora_ranks": "2:50%,4:40%"}, "lora_ranks must be ranks"),
        ({"lora_ranks": "2:50%,4"}, "lora_ranks must be ranks"),
        ({"lora_ranks": "2,4", "lora_rank": 2}, "lora_rank must be absent or 4, the largest"),
    ],
)
def test_ranks_that_can_not_be(options, message):
    with pytest.raises(pfl.InputError, match=message):
        toy_federation(**options)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("fedavg", {}, "fedavg needs adapters of one rank: give lora_rank in place"),
        ("hetlora", {"freeze": "body,*lora_a"}, "with lora_ranks needs both factors"),
        ("flora", {"freeze": "body,*lora_a"}, "with lora_ranks needs both factors"),
        ("hetlora", {"share": "*lora_a,head"}, "needs both factors of each adapter, and share"),
        ("hetlora", {"dp": "client", "dp_clip": 1.0}, "the server knows the ranks without noise"),
        ("hetlora", {"compress": "sign"}, "compress needs adapters of one rank"),
    ],
)
def test_refusals(name, options, message):
    with pytest.raises(pfl.InputError, match=message):
        one = toy_federation(model=TanhNetwork(), validation_size=0, **ADAPTERS, **options)
        pfl.Simulation(pfl.make_algorithm(name), one).check()


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["hetlora", "flora"])
def test_who_diverges_has_no_weight_but_its_traffic(name):
    federation = toy_federation(
        diverging=3, dtype="float32", validation_size=0, model=TanhNetwork(), **ADAPTERS
    )
    ours = pfl.make_algorithm(name)
    (before, after), (record,) = run_rounds(ours, federation, 1, scored=())
    new, old = (jax.tree.leaves(state.server) for state in (after, before))
    assert all(np.isfinite(leaf).all() for leaf in new)
    assert any((leaf != other).any() for leaf, other in zip(new, old, strict=True))
    clients = record["clients"]
    assert clients["diverged"].tolist() == [False, False, False, True, False]
    assert clients["numbers_down"][3] >= 9 * RANKS[0]
    assert clients["numbers_up"][3] == 9 * RANKS[0]


def test_kept_columns_are_rounded_down():
    """Though 0.84 * 75 is 62.999996 in single precision."""
    with jax.enable_x64(False):
        found = pfl.make_algorithm("hetlora", {"gamma": 0.84}).kept(jnp.array([1, 2, 75, 76]))
    np.testing.assert_array_equal(found, [0, 1, 63, 63])


def test_flora_sends_what_it_received():
    """Both members' factors of rank 1, which are fewer numbers than the kernel's 20."""
    late = {"stragglers": {1: 1, 2: 1, 4: 1}}
    one = sampled_federation(lora_ranks="1", participation=1.0, **late)
    _, (record,) = run_rounds(pfl.make_algorithm("flora"), one, 1, scored=())
    np.testing.assert_array_equal(record["clients"]["numbers_up"], [9, 0, 0, 9, 0])
    np.testing.assert_array_equal(record["clients"]["numbers_down"], [27, 0, 0, 27, 0])
    for way in ("up", "down"):  # the head
        np.testing.assert_array_equal(record[way].sum(axis=1), [1, 0, 0, 1, 0])


def test_norms_of_products():
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(3, 4, 2)), rng.normal(size=(3, 2, 5))
    wanted = [np.linalg.norm(one @ other) ** 2 for one, other in zip(a, b, strict=True)]
    np.testing.assert_allclose(squared_norms(jnp.asarray(a), jnp.asarray(b)), wanted, 1e-12)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"gamma": 0.0}, r"gamma must be in \(0, 1\]"),
        ({"tail_weight": -1.0}, "tail_weight must be at least 0"),
        ({"min_rank": 0}, "min_rank must be at least 1"),
        ({"weighting": "even"}, "weighting"),
    ],
)
def test_values_that_can_not_be(settings, message):
    with pytest.raises(pfl.InputError, match=message):
        pfl.make_algorithm("hetlora", settings)
