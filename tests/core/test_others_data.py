"""The checks catch algorithms that let absent or diverged clients' samples through."""

import jax
import jax.numpy as jnp
import pytest

import fedjax_pfl as pfl
from fedjax_pfl.testing import check_algorithm
from fedjax_pfl.testing.reads import rows_read
from fedjax_pfl.testing.toys import toy_for


@pfl.core.struct
class State:
    server: object = pfl.core.per_server()
    labels: object = pfl.core.per_server()


class Averaging(pfl.Algorithm):
    """FedAvg whose server also counts classes, of the clients that `counted` names."""

    def init(self, ctx):
        return State(ctx.initial_model(), jnp.zeros((3,), ctx.dtype))

    def round(self, ctx, state):
        trained, cohort, loss = ctx.train(pfl.Broadcast(state.server))
        weights = pfl.mixing.by_size(ctx.sizes(), cohort.mask)
        server = pfl.mixing.weighted_sum(weights, trained, onto=state.server)
        labels = self.counted(ctx, cohort).astype(ctx.dtype)
        return State(server, labels), ctx.record(cohort, clients={"train_loss": loss})

    def models(self, ctx, state, rows):
        return {"personalized": pfl.Broadcast(state.server)}


class CountsAll(Averaging):
    def counted(self, ctx, cohort):
        return ctx.federation.data.class_counts.sum(axis=0)


@pfl.core.struct
class Told:
    server: object = pfl.core.per_server()
    labels: object = pfl.core.per_client()


class TellsClients(Averaging):
    """What is counted is in the clients' state alone."""

    def counted(self, ctx, cohort):
        return ctx.federation.data.class_counts[cohort.rows].sum(axis=0)

    def init(self, ctx):
        state = super().init(ctx)
        return Told(state.server, ctx.replicate(state.labels))

    def round(self, ctx, state):
        state, record = super().round(ctx, state)
        return Told(state.server, ctx.replicate(state.labels)), record


class AddsSizes(Averaging):
    """Other samples change nothing, and fewer ones do."""

    def counted(self, ctx, cohort):
        return jnp.full((3,), ctx.federation.data.train.size[cohort.rows].sum())


LEAKS = [(CountsAll, "absent"), (TellsClients, "diverged"), (AddsSizes, "diverged")]


@pytest.mark.costly
@pytest.mark.parametrize(("cls", "who"), LEAKS)
def test_samples_of_others_are_noticed(cls, who, made):
    with jax.enable_x64(True), pytest.raises(AssertionError, match=f"samples of {who} clients"):
        check_algorithm(made(cls), only="others_data", show=None)


@pytest.mark.parametrize(
    ("name", "rows"), [("fedavg", "cohort"), ("fedamp", "others"), ("spfl", "everyone")]
)
def test_whose_rows_a_round_reads(name, rows):
    algorithm = pfl.make_algorithm(name)
    with jax.enable_x64(True):
        assert rows_read(algorithm, toy_for(algorithm, participation=0.6)) == rows
