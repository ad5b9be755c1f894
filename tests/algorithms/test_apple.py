"""APPLE against its reference, which starts from the library's own cores; its penalty."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl.testing.toys import assert_close, states_of, toy_federation
from tests.algorithms.comparison import Variant, comparison
from tests.algorithms.harness import maker, unstack
from tests.references import apple

algorithm = maker("apple")


def first_cores(one):
    """The library's own cores; their momentum is the federation's."""
    cores = unstack(one.states[0].cores["params"])
    kernels = [core["head"]["kernel"] for core in cores]
    assert (abs(kernels[0] - kernels[1]).max() > 0.1) == (one.variant == "independent")
    return {"initial": cores, "momentum": 0.9 if one.variant == "cosine" else 0.0}


def check_relations(now):
    now.assert_copies(now.present, now.case.num_clients * now.present)
    relations = now.wanted["relations"]
    own = np.where(now.present, np.diagonal(relations), np.nan)
    np.testing.assert_allclose(now.clients["self_relation"], own, 1e-9)
    shown = np.where(now.present[:, None], relations, np.eye(now.case.num_clients))
    np.testing.assert_allclose(now.record["matrices"]["relations"], shown, 1e-9, 1e-9)


test_reference, test_contract = comparison(
    "apple",
    apple.run,
    # A tenth of three rounds is none: here the penalty falls over two.
    settings={"relation_rate": 0.05, "mu": 0.7, "penalty_share": 0.7},
    variants={
        "independent": {"initial": "independent"},
        "cosine": Variant({"penalty_schedule": "cosine"}, options={"momentum": 0.9}),
    },
    ours=("initial",),
    given=first_cores,
    states={"cores": "cores", "personal": "personalized", "relations": "relations"},
    scores={"personalized": "personalized"},
    copies=None,
    check=check_relations,
)


@pytest.mark.parametrize("schedule", apple.SCHEDULES)
@pytest.mark.parametrize(("share", "dtype"), [(0.53, jnp.float32), (0.29, jnp.float64)])
def test_penalty_is_zero_after_its_share_of_rounds(schedule, share, dtype):
    """Though a share of 100 rounds is a little less than a whole number in these types."""
    assert np.floor(dtype(share) * 100) == round(share * 100) - 1
    ours = replace(algorithm(penalty_schedule=schedule, mu=2.0), penalty_share=dtype(share))
    last = round(share * 100)
    rounds = (0, last // 2, last - 1, last, 99)
    result = [ours.penalty(jnp.int32(t), jnp.int32(100)) for t in rounds]
    wanted = [2 * apple.penalty_factor(t, 100, share, schedule) for t in rounds]
    np.testing.assert_allclose(result, wanted, 1e-5)
    assert wanted[2] > 0 == wanted[3]
    with jax.debug_nans(True):  # a share of one round is none
        assert ours.penalty(jnp.int32(0), jnp.int32(1)) == 0


@pytest.mark.costly
def test_private_head_is_trained_whole_and_never_mixed():
    """One step on all samples: the body moves by q_ii times the gradient, the head by all of it."""
    federation = toy_federation((6, 6), (3, 3), share="body", batch_size=6, local_steps=1)
    start, end = states_of(algorithm(initial="independent"), federation, 1)
    assert_close(start.personal["params"]["head"], start.cores["params"]["head"], "heads", 0)
    body = start.cores["params"]["fc_0"]["kernel"]
    mixed = np.broadcast_to(body.mean(axis=0), body.shape)
    np.testing.assert_allclose(start.personal["params"]["fc_0"]["kernel"], mixed, 1e-12)
    rows, data = federation.data.train.index[:6], federation.data
    batch = pfl.training.Batch(
        data.samples[rows].astype(float), data.labels[rows], jnp.ones(6, bool)
    )
    first = jax.tree.map(lambda leaf: leaf[0], start.personal["params"])
    slope = jax.grad(lambda params: federation.task.loss({"params": params}, batch)[0])(first)
    for layer, share in (("fc_0", 0.5), ("head", 1.0)):
        before, after = (state.cores["params"][layer]["kernel"][0] for state in (start, end))
        np.testing.assert_allclose(
            before - after, 0.3 * share * slope[layer]["kernel"], 1e-9, 1e-12
        )
