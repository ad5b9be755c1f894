"""Checks that nothing depends on clients whose data privacy withholds."""

from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_pfl.core.interface import Algorithm
from fedjax_pfl.engine.arguments import checked_program
from fedjax_pfl.engine.final_models import Final
from fedjax_pfl.engine.program import Program
from fedjax_pfl.testing.programs import quick
from fedjax_pfl.testing.toys import (
    assert_close,
    first_run,
    in_double_precision,
    run_rounds,
    toy_for,
    without_rows,
)
from fedjax_pfl.uploads.stage import MODEL, UploadStage
from fedjax_pfl.utils import trees
from fedjax_pfl.utils.boundary import checked
from fedjax_pfl.utils.errors import InputError, UncountedRelease
from fedjax_pfl.utils.structs import Broadcast, by_field, struct
from fedjax_pfl.utils.typing import State, Tree

CLIENT, ROUNDS = 1, 3  # it is in every cohort of fixed size and in two Poisson cohorts
SEED = 5  # of the samples: other labels of the client make it similar to other clients
NEW_CLIENTS = (6, 2), (3, 1)  # training and test samples of each
MODEL_OPTIONS = ("model", "share", "batch_norm", "lora_rank", "lora_layers")
CHANGES: dict[str, dict[str, Any]] = {
    "samples and labels": {"changed": [CLIENT]},
    "overflow": {"diverging": CLIENT},
}
OF_SUMS: dict[str, dict[str, Any]] = {
    "number of samples": {"fewer": [CLIENT]},
    "absence": {"absent": [CLIENT]},
}
# Without noise, which would hide differences that are to be found.
CLIENTS: dict[str, Any] = {"dp": "client", "dp_clip": 5.0}
SUMS: dict[str, Any] = {**CLIENTS, "dp_placement": "distributed", "sampling": "poisson"}
# A clipped gradient vanishes to the bit in noise that is 1e30 times the clip.
NOISE: dict[str, Any] = {"dp_clip": 1e-30, "dp_noise": 1e30}


class Seen(NamedTuple):
    """What a run leaves.

    Attributes:
      state: after the last round.
      traffic: how many copies and numbers each client sends and receives, and which entries of the
        matrices are not zero, which tells whose models a client takes.
      models: of all clients, by name.
      new: models of new clients.
    """

    state: State
    traffic: Tree
    models: Tree
    new: Tree


@in_double_precision
@checked
def withhold_uploads(algorithm: Algorithm, **options: Any) -> str | None:
    """Assert that nothing but uploads tells anybody of a client.

    Whatever the client uploads in three rounds with sampling is replaced by its reference. Neither
    its samples and labels nor an overflow of its training may change, to the bit, the fields of the
    server or of other clients; under privacy nor anybody else's models, the amount of what is sent
    and received, or the models of new clients. With distributed noise the number of its samples,
    and whether it was drawn (up to rounding), may not change anything either; otherwise they are
    public.

    Args:
      algorithm: the algorithm.
      **options: options of the federation, such as `CLIENTS` or `SUMS`.

    Returns:
      None, or the sentence by which the algorithm or an option is refused.
    """
    federation: dict[str, Any] = {"withheld": [CLIENT]}
    changes = CHANGES
    if options.get("dp_placement") == "distributed":
        federation["absent"], changes = (), CHANGES | OF_SUMS
    return _unchanged(algorithm, options, federation, changes, [CLIENT])


@in_double_precision
@checked
def withhold_gradients(algorithm: Algorithm, **options: Any) -> str | None:
    """Assert that samples act through gradients alone, under sample-level privacy.

    First noise is so large that gradients do not depend on samples. Then a client's samples and
    labels may not change anything, to the bit: the state of all clients and of the server, the
    amount of what they send and receive, and models of new clients. Then there is no noise, and one
    of its samples overflows, whose gradient is zero. Its label may not change anything either,
    such as the gradients of other samples. Numbers of samples are public, and so are validation
    samples, which stay the same.

    Args:
      algorithm: the algorithm.
      **options: options of the federation beside privacy.

    Returns:
      None, or the sentence by which the algorithm or an option is refused.
    """
    public = algorithm.needs_validation
    options = {**options, "dp": "sample", "dp_public_validation": public}
    federation: dict[str, Any] = {"kept": ("validation",) if public else ()}
    refused = _unchanged(algorithm, options | NOISE, federation, CHANGES, [])
    if refused:
        return refused
    first, second = ({"spoiled": (CLIENT, label)} for label in (0, 2))
    changes = {"label of a sample without a gradient": second}
    return _unchanged(algorithm, options | {"dp_clip": 1e9}, federation | first, changes, [])


@struct
class Exchanged(UploadStage):
    """Uploads of two clients that change such that a weighted sum of all stays the same."""

    ids: jax.Array  # [2]
    shares: jax.Array  # [2]

    def __call__(self, sent, reference, sending, memory):
        if sending.what != MODEL:
            return sent, memory
        signed = jnp.array([1.0, -1.0]) / self.shares
        moved = jnp.where(sending.ids[:, None] == self.ids, signed, 0).sum(axis=1)
        return jax.tree.map(lambda leaf: leaf + trees.expand_to(leaf, moved), sent), memory


def exchange_uploads(algorithm: Algorithm) -> None:
    """Assert that a server with `server_needs = "sums"` is the same for uploads with the same mean.

    Servers of several means, such as those of classes and of clusters, are not checked.
    """
    plain = toy_for(algorithm)
    (start, wanted), (record,) = run_rounds(algorithm, plain, 1)
    shares = [one.reshape(-1) for one in record["matrices"].values()]
    if len(shares) != 1 or len(shares[0]) != plain.num_clients:
        return
    pair = jnp.array([0, 2])
    stage = Exchanged(pair, jnp.asarray(shares[0])[pair])
    (_, found), _ = run_rounds(algorithm, replace(plain, uploads=stage), 1, scored=())
    before, mean, other = (_servers(state) for state in (start, wanted, found))
    assert_close(other, mean, "the server's state differs for uploads with the same mean", 1e-9)
    unequal = [not np.array_equal(a, b) for a, b in zip(before, mean, strict=True)]
    assert any(unequal), "the server's state does not change in a round"


def _servers(state: State) -> list[Any]:
    """Return the leaves of the server's fields."""
    return jax.tree.leaves(by_field(lambda value, axes: value if axes == 0 else None, state))


def _unchanged(
    algorithm: Algorithm,
    options: dict[str, Any],
    federation: dict[str, Any],
    changes: dict[str, dict[str, Any]],
    apart: list[int],
) -> str | None:
    """Assert that runs with `changes` leave the same, without what the clients `apart` have."""
    try:
        before = _run(algorithm, options, federation)
    except UncountedRelease as lie:
        raise AssertionError(str(lie)) from lie
    except InputError as refusal:
        return str(refusal)
    for what, change in changes.items():
        after = _run(algorithm, options, federation | change)
        tolerance = 1e-9 if "absent" in change else 0
        said = f"the {what} of client {CLIENT} changed "
        changed, held = (without_rows(seen.state, apart) for seen in (after, before))
        assert_close(changed, held, said + "what others hold", tolerance)
        assert_close(after.new, before.new, said + "models of new clients", tolerance)
        if "dp" not in options:  # a common model may be a mean that nobody receives
            continue
        changed, held = (_models_without(seen.models, apart) for seen in (after, before))
        assert_close(changed, held, said + "the models of others", tolerance)
        if not tolerance:
            assert_close(after.traffic, before.traffic, said + "what is sent or received", 0)
    return None


def uploads_program(algorithm: Algorithm) -> Program | None:
    """Return the first program of `withhold_uploads` with the most privacy that is not refused."""
    for options in () if algorithm.also_sent else (SUMS, CLIENTS, {}):
        held = {"withheld": [CLIENT]} | ({"absent": ()} if options is SUMS else {})
        with suppress(InputError):
            return _program(algorithm, options, held)
    return None


def gradients_program(algorithm: Algorithm) -> Program | None:
    """Return the first program of `withhold_gradients` unless it is refused."""
    public = {"dp": "sample", "dp_public_validation": algorithm.needs_validation}
    with suppress(InputError):
        return _program(algorithm, public | NOISE, {})
    return None


def _program(algorithm: Algorithm, options: dict[str, Any], changes: dict[str, Any]) -> Program:
    federation = toy_for(algorithm, **{"participation": 0.6, "seed": SEED, **options}, **changes)
    program = checked_program(algorithm, federation, ROUNDS, chunk=ROUNDS)
    return quick(replace(program, scored=()))


def _run(algorithm: Algorithm, options: dict[str, Any], changes: dict[str, Any]) -> Seen:
    program = _program(algorithm, options, changes)
    states, record, matrices = program.advance(program.start(), 0, ROUNDS)
    final = Final(program, states)
    state, models = first_run(program.to_host(states)), first_run(final.models())
    return Seen(state, _traffic(record, matrices), models, _new_models(final, options))


def _new_models(final: Final, options: dict[str, Any]) -> Tree:
    """Return the models of new clients; () without privacy, and where it refuses new clients."""
    algorithm, privacy = final.program.runs.algorithm, final.program.federation.privacy
    of_models = {name: value for name, value in options.items() if name in MODEL_OPTIONS}
    if privacy is None:
        return ()
    try:
        return final.personalize(toy_for(algorithm, *NEW_CLIENTS, **of_models))
    except InputError:
        return ()


def _models_without(models: Tree, clients: list[int]) -> Tree:
    """Return models by name without those of some clients."""

    def others(stack: Tree) -> Tree:
        if isinstance(stack, Broadcast):
            return stack
        return jax.tree.map(lambda x: np.delete(x, clients, 0), stack)

    return {name: others(stack) for name, stack in models.items()}


def _traffic(record: dict[str, Any], matrices: Tree) -> Tree:
    numbers = {k: v for k, v in record["clients"].items() if k.startswith("numbers")}
    nonzero = jax.tree.map(lambda matrix: np.asarray(matrix) != 0, matrices)
    return {**numbers, "up": record["up"], "down": record["down"], "nonzero": nonzero}
