"""FedRoD against its reference, its new clients, and what it scores."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl import Context
from fedjax_pfl.testing.toys import TanhNetwork, assert_close, toy_federation
from tests.algorithms.comparison import Variant, comparison
from tests.algorithms.harness import assert_losses, maker, stack
from tests.algorithms.norms import ConvNorm
from tests.references import fedrod, network

algorithm = maker("fedrod")


def joined(model):
    """The network with one head whose logits are those of both."""
    both = network.add({"head": model["head"]}, {"head": model["personal_head"]})
    return {"hidden": model["hidden"], **both}


def assert_record(now):
    now.assert_mean()
    assert_losses(
        now.record, now.case, "personalized", list(map(joined, now.wanted["personalized"]))
    )


def assert_trained(one):
    """What was trained last is kept, where it is scored."""
    if not one.algorithm.score_trained:
        return
    first = one.case.initial()
    last = [{**first, "personal_head": first["head"]}] * one.case.num_clients
    for now in one.rounds():
        last = [now.wanted["trained"].get(i, model) for i, model in enumerate(last)]
        assert_close(now.state.trained, stack(last), "trained")
        assert_losses(now.record, one.case, "last_trained", list(map(joined, last)))


def new_clients(one, made):
    """They learn a personal head beside the server's model."""
    case, server, (batches, given) = one.case, one.wanted[-1]["global"], one.newcomers()
    models = []
    for i, own in enumerate(batches):
        offset = fedrod.log_counts(case.y[case.samples(i)], 3)
        first = case.initial()["head"]
        head = fedrod.train_client(server, first, own, *given, offset, 0.5)[1]
        models.append({**server, "personal_head": head})
    return models


# Of an incomplete batch at the end of a client's samples, which is dropped, classes count too: a
# published form counts what its loader gives.
test_reference, test_contract = comparison(
    "fedrod",
    fedrod.run,
    settings={"personal_weight": 0.5},
    variants={
        "slower personal heads": {},
        "scores of trained models, incomplete batches dropped": Variant(
            {"score_trained": True}, {"personal_weight": 0.5}, {"drop_last": True}
        ),
    },
    joined="personalized",
    scores={"global": "global"},
    check=assert_record,
    finish=assert_trained,
    new_clients=new_clients,
)


@pytest.mark.parametrize(("options", "whole"), [({}, True), ({"batch_norm": "local"}, False)])
def test_global_score_needs_one_model_for_all(options, whole):
    ours = algorithm()
    federation = ours.prepare(toy_federation(model=ConvNorm(), **options))
    key, zero = jax.random.key(0), jnp.int32(0)
    ctx = Context(federation, key, zero, zero + 1, None)
    named = jax.eval_shape(lambda: ours.models(ctx, ours.init(ctx), np.arange(5)))
    assert ("global" in named) == whole


def test_extra_losses_see_the_features():
    seen = []

    @pfl.core.struct
    class Seeing(pfl.training.ExtraLoss):
        def __call__(self, params, batch, client, plan):
            seen.append((batch.logits.shape, batch.features.shape))
            return jnp.sum(batch.features**2)

    federation = toy_federation(model=TanhNetwork(), extra_loss=Seeing())
    pfl.Simulation(algorithm(), federation).check()
    assert set(seen) == {((4, 3), (4, 5))}
