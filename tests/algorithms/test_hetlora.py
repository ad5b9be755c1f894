"""HetLoRA against its reference: ranks by client, pruned and padded."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl.algorithms.common.adapter_ranks import squared_norms
from fedjax_pfl.models.adapters import parse_ranks
from fedjax_pfl.testing.toys import TanhNetwork, run_rounds, toy_federation
from tests.algorithms.comparison import comparison
from tests.algorithms.lora import base_of
from tests.references import hetlora

ALPHA, RANKS = 4.0, (3, 1, 4)
ADAPTERS = {"lora_ranks": "3,1,4", "lora_alpha": ALPHA}


def base_and_ranks(one):
    ranks = [RANKS[k % 3] for k in np.asarray(one.case.federation.data.ids)]
    return {"base": base_of(one.case), "factor": ALPHA / 4, "ranks": ranks}


def assert_ranks(now):
    before, after = now.before.ranks, np.array(now.wanted["ranks"])
    now.assert_copies(np.outer(now.present, [0, 1]))  # of the head
    np.testing.assert_array_equal(now.clients["numbers_down"], (4 + 5) * before * now.present)
    np.testing.assert_array_equal(now.clients["numbers_up"], (4 + 5) * after * now.present)
    np.testing.assert_array_equal(now.clients["rank"][now.present], after[now.present])


def assert_pruned(one):
    first, last = one.options["ranks"], one.wanted[-1]["ranks"]
    assert min(last) == 1 and sum(last) < sum(first)


test_reference, test_contract = comparison(
    "hetlora",
    hetlora.run,
    settings={"gamma": 0.6, "tail_weight": 0.3, "min_rank": 2},
    options=ADAPTERS,
    variants={"by norm": {}, "by size": {"weighting": "size"}},
    given=base_and_ranks,
    states={"server": "global", "ranks": "ranks"},
    scores={"personalized": "whole"},
    copies=None,
    check=assert_ranks,
    finish=assert_pruned,
)


@pytest.mark.costly
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
def test_parse_ranks(given, wanted):
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
def test_invalid_ranks(options, message):
    with pytest.raises(pfl.InputError, match=message):
        toy_federation(**options)


@pytest.mark.costly
@pytest.mark.parametrize("name", ["hetlora", "flora"])
def test_divergence_with_adapters(name):
    federation = toy_federation(
        diverging=3, dtype="float32", validation_size=0, model=TanhNetwork(), **ADAPTERS
    )
    ours = pfl.make_algorithm(name)
    (before, after), (record,) = run_rounds(ours, federation, 1, scored=())
    for part in ("server", "base") if name == "flora" else ("server",):
        new, old = (jax.tree.leaves(getattr(state, part)) for state in (after, before))
        assert all(np.isfinite(leaf).all() for leaf in new)
        assert any((leaf != other).any() for leaf, other in zip(new, old, strict=True))
    clients = record["clients"]
    assert clients["diverged"].tolist() == [False, False, False, True, False]
    assert clients["numbers_down"][3] >= 9 * RANKS[0]
    assert clients["numbers_up"][3] == 9 * RANKS[0]


@pytest.mark.costly
def test_compressed_uploads_are_charged():
    options = {"model": TanhNetwork(), "dtype": "float32", "lora_rank": 4, "compress": "sign"}
    result = pfl.simulate(
        pfl.make_algorithm("hetlora", {"gamma": 1.0}), toy_federation(**options), 1
    )
    assert result.traffic()["up"].max() == result.upload_bytes.sum() < 4 * result.block_sizes.sum()
    assert result.traffic()["down"].max() == 4 * result.block_sizes.sum()


def test_kept_ranks_are_rounded_down():
    """Though 0.84 * 75 is 62.999996 in single precision."""
    with jax.enable_x64(False):
        found = pfl.make_algorithm("hetlora", {"gamma": 0.84}).kept(jnp.array([1, 2, 75, 76]))
    np.testing.assert_array_equal(found, [0, 1, 63, 63])


def test_squared_norms():
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(3, 4, 2)), rng.normal(size=(3, 2, 5))
    wanted = [np.linalg.norm(one @ other) ** 2 for one, other in zip(a, b, strict=True)]
    np.testing.assert_allclose(squared_norms(jnp.asarray(a), jnp.asarray(b)), wanted, 1e-12)
