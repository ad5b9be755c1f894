"""What leaves a client leaves through `Context.upload`."""

from dataclasses import replace

import jax
import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl.algorithms.fedavg import FedAvg
from fedjax_pfl.testing import check_algorithm
from fedjax_pfl.testing.checks import CHECKS
from fedjax_pfl.testing.toys import run_rounds, states_of, toy_federation
from fedjax_pfl.uploads.stage import UploadStage


@pfl.core.struct
class State:
    models: object = pfl.core.per_client()
    server: object = pfl.core.per_server()


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
    also_sent = ("training losses",)


class HalfOfTheServer(Averaging):
    """The reference is made from data that the client has not sent."""

    def sent(self, ctx, trained, received):
        return ctx.upload(trained, jax.tree.map(lambda a, b: (a + b) / 2, trained, received))


@pytest.mark.costly
@pytest.mark.parametrize(
    "cls",
    [
        pytest.param(Averaging, marks=pytest.mark.costly),  # as every algorithm of the package
        Unsent,
        WeighsByLoss,
        DeclaresIt,
        HalfOfTheServer,
    ],
)
def test_what_bypasses_the_upload_is_noticed(cls, made):
    algorithm = made(cls)
    with jax.enable_x64(True):
        if cls in (Averaging, DeclaresIt):
            check_algorithm(algorithm, only="uploads_withheld", show=None)
        else:
            with pytest.raises(
                AssertionError, match="samples and labels of client 1 changed what others hold"
            ):
                check_algorithm(algorithm, only="uploads_withheld", show=None)


def test_free_riders_send_what_the_server_holds():
    """FedAvg with a free rider moves as if that client had sent the server's model, 1/N of it.

    The lists of free riders are equally long, so that one program serves them; -1 is not a client.
    """
    nobody = [-1] * 4
    with jax.enable_x64(True):
        (states, _), (plain, _), (alone, records) = (
            run_rounds(pfl.make_algorithm("fedavg"), toy_federation(withheld=who), 1, scored=())
            for who in ([2, *nobody[1:]], nobody, [0, 1, 3, 4])
        )
    sizes = records[0]["matrices"]["mixing"][0]
    assert sizes[2] > 0

    def pieces(a, b, c, start):
        np.testing.assert_allclose((a - start) + (b - start), c - start, atol=1e-12)

    jax.tree.map(pieces, states[1].server, alone[1].server, plain[1].server, plain[0].server)
    assert not np.allclose(*(jax.tree.leaves(s[1].server)[0] for s in (states, plain)))


OPTIONS = [
    ("feddwa", {"guidance": "full_gradient"}),
    ("feddwa", {"guidance": "last"}),
    ("feddwa", {"guidance": "extrapolate"}),
    ("spfl", {"weighting": "paper"}),
    ("lg_fedavg", {"warmup_rounds": 2}),
    ("waffle", {"distance": "gradient"}),
    ("fedasync", {"mode": "original"}),
    ("fedproto", {"feature_means": "last_epoch"}),
    ("sfl", {"graph": "neighbours"}),
    ("fedala", {"participants": "sampled"}),
    ("apple", {"initial": "independent"}),
]


@pytest.mark.costly
@pytest.mark.parametrize(("name", "options"), OPTIONS)
def test_options_send_through_it_too(name, options):
    made = pfl.make_algorithm(name, options)
    with jax.enable_x64(True):
        assert not made.also_sent
        CHECKS["uploads_withheld"](made)


def test_options_that_tell_the_server_more():
    assert pfl.make_algorithm("cwfedavg", {"shares": "labels"}).also_sent
    assert pfl.make_algorithm("sfl", {"graph": "learned"}).also_sent
    assert pfl.make_algorithm("sfl").also_sent and pfl.make_algorithm("ifca").also_sent


class WeighsByUploads(FedAvg):
    """Looks at single uploads, and inherits that its server needs sums."""

    def weigh(self, ctx, state, sent):
        norms = pfl.similarity.squared_norms(ctx.plan.trainable_shared(sent.models))
        return pfl.mixing.normalize(norms, sent.cohort.mask), state


@pytest.mark.costly
def test_a_server_that_needs_sums_needs_no_more(monkeypatch):
    monkeypatch.setitem(pfl.core.ALGORITHMS, "weighs", None)  # forgotten at the end
    del pfl.core.ALGORITHMS["weighs"]
    weighs = pfl.core.algorithm("weighs")(WeighsByUploads)()
    with jax.enable_x64(True):
        CHECKS["sums_of_uploads"](pfl.make_algorithm("fedavg"))
        with pytest.raises(AssertionError, match="differs for uploads with the same mean"):
            CHECKS["sums_of_uploads"](weighs)


@pfl.core.struct
class Scaled(UploadStage):
    factor: object = 1.0

    def __call__(self, sent, reference, sending, memory):
        return jax.tree.map(lambda leaf: self.factor * leaf, sent), memory


@pytest.mark.costly
def test_private_leaves_are_not_sent():
    with jax.enable_x64(True):
        made, plain = pfl.make_algorithm("fedper"), toy_federation()
        (_, wanted), (_, found) = (
            states_of(made, replace(plain, uploads=Scaled(factor)), 1) for factor in (1.0, 0.0)
        )
    assert jax.tree.leaves(found.private)
    jax.tree.map(np.testing.assert_array_equal, found.private, wanted.private)
    assert not any(leaf.any() for leaf in jax.tree.leaves(found.server))
