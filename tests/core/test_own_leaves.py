"""Algorithms of one's own whose models have shared leaves and clients' own ones."""

from typing import Any

import jax
import pytest

import fedjax_pfl as pfl
from fedjax_pfl import core, mixing, trees
from fedjax_pfl.testing.toys import assert_close, run_rounds, toy_federation


@core.struct
class Halves:
    server: Any = core.per_server()
    own: Any = core.per_client()


class OwnHeads(core.Algorithm):
    """Clients train a shared body and a head of their own together."""

    share = "body"

    def init(self, ctx):
        server, own = ctx.plan.split(ctx.initial_model())
        return Halves(server, ctx.replicate(own))

    def round(self, ctx, state):
        received = trees.assemble(state.server, ctx.cohort.gather(state.own))
        trained, cohort, loss = ctx.train(received)
        sent, own = ctx.plan.split(ctx.upload(trained, received))
        weights = mixing.by_size(ctx.sizes(), cohort.mask)
        server = mixing.weighted_sum(weights, sent, onto=state.server)
        record = ctx.record(cohort, clients={"train_loss": loss}, mixing=weights)
        return Halves(server, cohort.scatter(state.own, own)), record

    def models(self, ctx, state, rows):
        return {"personalized": trees.assemble(state.server, trees.take(state.own, rows))}


@pytest.mark.costly
def test_it_is_fedper(made):
    with jax.enable_x64(True):
        federation = toy_federation(participation=0.6, validation_size=0)
        ours, records = run_rounds(made(OwnHeads), federation)
        theirs, wanted = run_rounds(pfl.make_algorithm("fedper"), federation)
    assert_close(ours[-1].server, theirs[-1].server, "server", 1e-12)
    assert_close(ours[-1].own, theirs[-1].private, "heads", 1e-12)
    assert_close(records[-1]["scores"], wanted[-1]["scores"], "scores", 1e-12)


def test_models_without_private_leaves_are_one():
    assembled = trees.assemble({"params": {"w": 1.0}}, {"params": {"w": None}})
    assert isinstance(assembled, core.Broadcast) and assembled.model == {"params": {"w": 1.0}}
