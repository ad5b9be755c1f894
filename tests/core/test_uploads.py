"""What leaves a client leaves through `Context.upload`."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl.federation.uploads import FreeRiders
from fedjax_pfl.testing import check_algorithm
from fedjax_pfl.testing.toys import run_rounds, toy_federation


@pfl.struct
class State:
    models: object = pfl.per_client()
    server: object = pfl.per_server()


class Averaging(pfl.Algorithm):
    """Clients replace their models by the mean of what `sent` sends."""

    def init(self, ctx):
        model = ctx.initial_model()
        return State(ctx.replicate(model), model)

    def round(self, ctx, state):
        received = ctx.cohort.gather(state.models)
        trained, cohort, loss = ctx.train(received)
        weights = self.weights(ctx, cohort, loss)
        sent = self.sent(ctx, trained, received)
        server = pfl.mixing.weighted_sum(weights, sent, onto=state.server)
        mixed = ctx.average(weights, sent, onto=trained)
        return State(cohort.scatter(state.models, mixed), server), ctx.record(cohort)

    def weights(self, ctx, cohort, loss):
        return pfl.mixing.by_size(ctx.sizes(), cohort.mask)

    def sent(self, ctx, trained, received):
        return ctx.upload(trained, received)

    def models(self, ctx, state, rows):
        return {"personalized": pfl.trees.take(state.models, rows)}


class Unsent(Averaging):
    def sent(self, ctx, trained, received):
        return trained


class WeighsByLoss(Averaging):
    def weights(self, ctx, cohort, loss):
        return pfl.mixing.normalize(loss, cohort.mask)


class DeclaresIt(WeighsByLoss):
    channels = ("training losses",)


class HalfOfTheServer(Averaging):
    """The reference is made from data that the client has not sent."""

    def sent(self, ctx, trained, received):
        return ctx.upload(trained, jax.tree.map(lambda a, b: (a + b) / 2, trained, received))


@pytest.mark.parametrize("cls", [Averaging, Unsent, WeighsByLoss, DeclaresIt, HalfOfTheServer])
def test_what_bypasses_the_upload_is_noticed(cls):
    made = pfl.algorithm(cls.__name__.lower())(cls)()
    with jax.enable_x64(True):
        if cls in (Averaging, DeclaresIt):
            check_algorithm(made, only="uploads", show=None)
        else:
            with pytest.raises(AssertionError, match=r"samples of withheld clients \[2\]"):
                check_algorithm(made, only="uploads", show=None)


def test_free_riders_send_what_the_server_holds():
    """FedAvg with a free rider moves as if that client had sent the server's model, 1/N of it."""
    with jax.enable_x64(True):
        made = pfl.make_algorithm("fedavg")
        states, _ = run_rounds(made, toy_federation(withheld=[2]), 1)
        plain, _ = run_rounds(made, toy_federation(), 1)
        alone, records = run_rounds(made, toy_federation(withheld=[0, 1, 3, 4]), 1)
    sizes = records[0]["matrices"]["mixing"][0]
    assert sizes[2] > 0

    def pieces(a, b, c, start):
        np.testing.assert_allclose((a - start) + (b - start), c - start, atol=1e-12)

    jax.tree.map(pieces, states[1].server, alone[1].server, plain[1].server, plain[0].server)
    assert not np.allclose(*(jax.tree.leaves(s[1].server)[0] for s in (states, plain)))


@pfl.struct
class Zeroed(FreeRiders):
    def __call__(self, sent, reference, cohort, what):
        return jax.tree.map(jnp.zeros_like, sent)


def test_private_leaves_are_not_sent():
    with jax.enable_x64(True):
        made, plain = pfl.make_algorithm("fedper"), toy_federation()
        zeroed = replace(plain, uploads=Zeroed(jnp.zeros((0,), jnp.int32)))
        (_, wanted), _ = run_rounds(made, plain, 1)
        (_, found), _ = run_rounds(made, zeroed, 1)
    assert jax.tree.leaves(found.private)
    jax.tree.map(np.testing.assert_array_equal, found.private, wanted.private)
    assert not any(leaf.any() for leaf in jax.tree.leaves(found.server))
