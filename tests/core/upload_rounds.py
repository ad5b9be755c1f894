"""Rounds of an algorithm that keeps what was trained and what the server received."""

from dataclasses import replace
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np

import fedjax_pfl as pfl
from fedjax_pfl.engine.runs import make_runs
from fedjax_pfl.testing.toys import run_rounds, toy_federation

SIZES = (7, 3, 6, 10, 4)


def context(algorithm, rounds=1, **options):
    """The context of an algorithm's first round on a toy federation."""
    federation = algorithm.prepare(toy_federation(SIZES, **options))
    run = jax.tree.map(lambda leaf: leaf[0], make_runs(algorithm, federation, (0,)))
    return run.context(federation, jnp.int32(0), jnp.int32(rounds))


@pfl.core.struct
class State:
    server: object = pfl.core.per_server()
    trained: object = pfl.core.per_client()
    sent: object = pfl.core.per_client()


class NotesUploads(pfl.Algorithm):
    """FedAvg that keeps what was trained and what the server received."""

    aggregator_replaces = "mean"
    server_needs = "sums"

    def init(self, ctx):
        model = ctx.initial_model()
        stack = ctx.replicate(model)
        return State(model, stack, stack)

    def round(self, ctx, state):
        held = pfl.core.Broadcast(state.server)
        trained, cohort, _ = ctx.train(held)
        sent = ctx.upload(trained, held)
        weights = pfl.mixing.by_size(ctx.sizes(), cohort.mask)
        server = ctx.aggregate(weights, sent, onto=state.server)
        kept = cohort.scatter((state.trained, state.sent), (trained, sent))
        return State(server, *kept), ctx.record(cohort, mixing=weights)

    def models(self, ctx, state, rows):
        return {"personalized": pfl.core.Broadcast(state.server)}


@cache
def notes_uploads():
    """Return the algorithm, which is not left among the registered ones."""
    algorithm = pfl.core.algorithm("notes_uploads")(NotesUploads)()
    del pfl.core.ALGORITHMS["notes_uploads"]
    return algorithm


def without_notes(*sizes, **options):
    """A federation whose options' numbers are traced alone: others compile nothing again."""
    return replace(toy_federation(*sizes, **options), notes=())


def run(rounds=3, scored=(), **options):
    """[(server before [d], trained [N, d], sent [N, d], server after, members, record)]."""
    federation = without_notes((7, 3, 6, 10, 4), **options)
    states, records = run_rounds(notes_uploads(), federation, rounds, scored=scored)
    states = [getattr(state, "own", state) for state in states]
    out = []
    for before, after, record in zip(states, states[1:], records, strict=False):
        present = np.flatnonzero(record["clients"]["participated"])
        out.append((flat(before.server), flat(after.trained, 5), flat(after.sent, 5),
                    flat(after.server), present, record))  # fmt: skip
    return out


def flat(tree, rows=None):
    leaves = jax.tree.leaves(tree)
    if rows is None:
        return np.concatenate([np.asarray(leaf).reshape(-1) for leaf in leaves])
    return np.concatenate([np.asarray(leaf).reshape(rows, -1) for leaf in leaves], 1)
