"""Mistakes of authors that the shared checks find."""

import jax
import jax.numpy as jnp
import pytest

import fedjax_pfl as pfl
from fedjax_pfl import core, mixing, trees
from fedjax_pfl.testing import check_algorithm
from fedjax_pfl.testing.toys import toy_federation


@core.struct
class State:
    models: core.Stack = core.per_client()
    server: core.Model = core.per_server()


class Right(core.Algorithm):
    """Every client trains its own model; the server averages them."""

    def init(self, ctx):
        model = ctx.initial_model()
        return State(ctx.replicate(model), model)

    def round(self, ctx, state):
        received = ctx.cohort.gather(state.models)
        trained, cohort, loss = self.trained(ctx, received)
        sent = ctx.upload(trained, received)
        weights = mixing.by_size(ctx.sizes(), cohort.mask)
        server = mixing.weighted_sum(weights, sent, onto=state.server)
        models = self.next_models(ctx, cohort, state, trained, server)
        return State(models, server), ctx.record(cohort, clients={"train_loss": loss})

    def trained(self, ctx, received):
        return ctx.train(received)

    def next_models(self, ctx, cohort, state, trained, server):
        return cohort.scatter(state.models, trained)

    def models(self, ctx, state, rows):
        return {"personalized": trees.take(state.models, rows)}


class LearnsFromPadding(Right):
    """A loss over all rows of a minibatch, of which the last ones may be padding."""

    def trained(self, ctx, received):
        def over_all_rows(params, batch, broadcast, client):
            chosen = jax.nn.log_softmax(batch.logits)[jnp.arange(len(batch.labels)), batch.labels]
            return -jnp.mean(chosen)

        return ctx.train(received, extra_loss=over_all_rows)


class ReusesAKey(Right):
    def schedules(self, federation):
        return (federation.schedule,) * 2

    def trained(self, ctx, received):
        first, cohort, _ = ctx.train(received)
        return ctx.train(first, cohort)


class ChangesAbsentClients(Right):
    def next_models(self, ctx, cohort, state, trained, server):
        nearer = jax.tree.map(lambda own, mean: 0.9 * own + 0.1 * mean, state.models, server)
        return cohort.scatter(nearer, trained)


class RecordsOtherWeights(Right):
    """The record has equal weights, the server's model those of sizes."""

    def round(self, ctx, state):
        state, _ = super().round(ctx, state)
        equal = mixing.normalize(ctx.cohort.mask.astype(ctx.dtype))
        return state, ctx.record(ctx.cohort, mixing=equal)


class DeclaresSharedBatches(ReusesAKey):
    reuses_keys = True


WRONG = [
    (LearnsFromPadding, "padding", "padding rows of minibatches changed the state"),
    (ReusesAKey, "recorded_steps", "trains twice with the key of 'train': give one"),
    (RecordsOtherWeights, "recorded_matrices", "'mixing' of round 1 has rows that no function of"),
    (ChangesAbsentClients, "partial_participation", "models of absent clients in round 1"),
]


@pytest.mark.parametrize(("cls", "check", "message"), WRONG)
def test_mistakes_are_found(made, cls, check, message):
    with pytest.raises(AssertionError, match=message):
        check_algorithm(made(cls), only=check, show=None)


@pytest.mark.costly
def test_equal_batches_may_be_declared(made):
    check_algorithm(made(DeclaresSharedBatches), only="recorded_steps", show=None)


def test_text_that_is_not_static_is_refused():
    class Worded(pfl.core.ALGORITHMS["local"]):
        kind: str = "a"

    algorithm = core.algorithm("worded")(Worded)()
    del core.ALGORITHMS["worded"]
    with pytest.raises(pfl.InputError, match=r"kind of worded is text.*core.static\('a'\)"):
        pfl.simulate(algorithm, toy_federation(dtype="float32"), 1)
