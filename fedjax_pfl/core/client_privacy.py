"""Client-level differential privacy of a simulation: its releases, and noise for an epsilon.

With noise on every upload ("local") each upload is a release, and a client spends privacy only in
the rounds in which it takes part. With noise shared by the members ("distributed") the sum of a
round is the release, and sampling amplifies privacy.
"""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_pfl.core.context import Context
from fedjax_pfl.core.interface import Algorithm
from fedjax_pfl.core.round_observer import RoundFacts, RoundObserver
from fedjax_pfl.federation.federation import Federation
from fedjax_pfl.uploads.accounting import noise_for_each, upload_releases
from fedjax_pfl.utils.errors import InputError, UncountedRelease
from fedjax_pfl.utils.structs import client_axes
from fedjax_pfl.utils.typing import State

LOCAL = "noise on every upload"
POISSON, FIXED = "Poisson cohorts", "cohorts of a fixed size accounted as Poisson sampling"


def client_releases(
    algorithm: Algorithm, federation: Federation, facts: RoundFacts
) -> dict[str, Any]:
    """Return what a round releases, as plain values that a result keeps.

    Args:
      algorithm, federation: of the simulation.
      facts: of one of its rounds.

    Returns:
      per_round: uploads of a member in a round.
      rate: probability that a client is in a release.
      local: whether a client pays only for the rounds in which it takes part.
      sampling: the assumption of the accounting, in words.
      cut: (clients, most of them in a cohort), see `accounting.Release`; None without a limit.
    """
    part, local = federation.participation, not _noise_of_sums(federation)
    rate, words, cut = 1.0, LOCAL, None
    idle = algorithm.absent_idle  # otherwise absent clients upload, too
    if is_amplified(algorithm, federation):
        rate = part.cohort_size / federation.num_clients if part.poisson is None else part.poisson
        words = FIXED if part.poisson is None else POISSON
        if part.poisson is not None and part.cohort_size < federation.num_clients:
            cut = (federation.num_clients, part.cohort_size)
    elif not local:
        words = "all clients in every round"
    local = local and idle
    per_round = len(facts.uploads)
    return {"per_round": per_round, "rate": float(rate), "local": local, "sampling": words,
            "cut": cut}  # fmt: skip


def _noise_of_sums(federation: Federation) -> bool:
    return federation.uploads is not None and federation.uploads.noise_of_sums


def is_amplified(algorithm: Algorithm, federation: Federation) -> bool:
    """Return whether client sampling amplifies privacy: noise is of sums of sampled clients."""
    sampled = federation.participation.sampled(federation.num_clients)
    return _noise_of_sums(federation) and algorithm.absent_idle and sampled


def check_uploads_differ(
    algorithm: Algorithm, federation: Federation, observer: RoundObserver
) -> None:
    """Raise `UncountedRelease` if two uploads of a round would draw the same noise."""
    privacy, names = federation.privacy, [upload.what for upload in observer.uploads]
    if privacy is None or privacy.unit != "client":
        return
    if len(set(names)) < len(names):
        raise UncountedRelease(
            f"A round of {algorithm.name} uploads twice under one name "
            f"({', '.join(map(repr, names))}), with the same noise: give each ctx.upload another "
            "`what`."
        )
    if observer.amplified and observer.sums > len(names):
        raise UncountedRelease(
            f"A round of {algorithm.name} adds uploads up {observer.sums} times and uploads "
            f"{len(names)} times, and several sums tell who was drawn: take dp_placement='local'."
        )


def client_noise_within(
    epsilon: float,
    algorithm: Algorithm,
    facts: RoundFacts,
    *,
    federation: Federation,
    rounds: int,
) -> np.ndarray:
    """Return the noise multiplier that keeps a client in every round within `epsilon`.

    Args:
      epsilon: of the whole run.
      algorithm, facts, federation: see `client_releases`.
      rounds: of the run.

    Raises:
      InputError: no noise is large enough, or dp-accounting is not installed.
    """
    released = client_releases(algorithm, federation, facts)
    privacy = federation.privacy
    assert privacy is not None
    (noise,) = noise_for_each(epsilon, privacy.delta, [upload_releases(released, 1.0, rounds)])
    return np.nextafter(np.asarray(noise, federation.task.dtype), np.inf)


def state_for_new_clients(algorithm: Algorithm, ctx: Context, state: State) -> State:
    """Return the state from which new clients begin.

    Under client-level privacy only the server's fields have noise, so clients' own fields, such as
    private leaves, are those before the first round.

    Raises:
      InputError: the server keeps nothing but clients' own fields.
    """
    privacy = ctx.federation.privacy
    if privacy is None or privacy.unit != "client":
        return state
    servers = [getattr(state, name) for name, axes in client_axes(state).items() if axes == 0]
    if not any(jnp.issubdtype(leaf.dtype, jnp.inexact) for leaf in jax.tree.leaves(servers)):
        raise InputError(
            f"New clients of {algorithm.name} begin with other clients' models, which dp='client' "
            "does not cover: leave new clients out, or take an algorithm with a server's model."
        )
    return _with_own_fields(state, algorithm.init(ctx))


def _with_own_fields(state: State, first: State) -> State:
    """Return the state with the clients' fields of another one."""
    fields = {}
    for name, axes in client_axes(state).items():
        now, before = getattr(state, name), getattr(first, name)
        if axes is None:
            fields[name] = _with_own_fields(now, before)
        else:
            fields[name] = before if axes else now
    return replace(state, **fields)
