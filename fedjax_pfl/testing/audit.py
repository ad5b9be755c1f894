"""Audits of differential privacy by attack: lower bounds of epsilon from many runs.

A run is repeated with one client's (or one sample's) worst contribution and without it. An attacker
who sees what is released guesses which of the two it was. How often it is right bounds epsilon from
below, and this bound may not exceed the stated epsilon.
"""

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fedjax_pfl.core.interface import Algorithm
from fedjax_pfl.engine.simulate import simulate
from fedjax_pfl.engine.simulation import Simulation
from fedjax_pfl.federation.federation import Federation
from fedjax_pfl.testing.guesses import Audit, attacked
from fedjax_pfl.uploads.accounting import Release, epsilon
from fedjax_pfl.uploads.pipeline import Uploads
from fedjax_pfl.uploads.stage import MODEL, StageMemory, UploadInfo
from fedjax_pfl.utils.boundary import checked
from fedjax_pfl.utils.errors import InputError, require
from fedjax_pfl.utils.structs import client_axes, struct
from fedjax_pfl.utils.typing import Key, Stack, State, Tree

DELTAS = (0.01, 0.1, 0.5, 0.9, 0.99)
FAR = 1e6  # norm of a worst update before it is clipped
OTHERS = (0.0, 1.0)  # other clients' updates, as multiples of the worst one


@checked
def audit_privacy(
    algorithm: Algorithm,
    federation: Federation,
    rounds: int,
    *,
    seeds: int = 1000,
    client: int = 0,
    deltas: Sequence[float] = DELTAS,
) -> Audit:
    """Attack simulations of a federation with differential privacy.

    With `dp="client"` a client sends an update far beyond the clip in all of its uploads, or an
    update of zero; the other clients send zero, or the same. With `dp="sample"` its first training
    sample is as in the data, or missing without changing its number of samples; the attack is the
    worst one if the sample's gradients exceed `dp_clip`. The attacker sees the fields of the
    server after each round and, unless noise is distributed, what the client uploads as its model.

    Args:
      algorithm: the algorithm with its hyperparameters.
      federation: a small one with `dp_noise` or `dp_epsilon`.
      rounds: of each run.
      seeds: number of runs with the contribution, and of those without it.
      client: place of the client.
      deltas: compared beside the `dp_delta` of the federation.

    Raises:
      InputError: no differential privacy, error feedback, or samples that are not floats.
    """
    privacy = federation.privacy
    if privacy is None:
        raise InputError("audit_privacy needs a federation with dp='client' or dp='sample'.")
    stage = federation.uploads or Uploads()
    if not isinstance(stage, Uploads) or stage.feedback is not None:
        raise InputError("audit_privacy needs the federation's own uploads without error_feedback.")
    deltas = sorted({float(privacy.delta), *deltas})
    target = federation.data.ids[client]
    options: dict[str, Any] = {"seeds": range(seeds), "eval_every": rounds}

    def world(present: float, others: float) -> Federation:
        own = {field.name: getattr(stage, field.name) for field in fields(Uploads)}
        if privacy.unit == "sample":
            changed = _with_sample(federation, client, present)
            return replace(changed, uploads=Canary(**own, target=target))
        worst = {"present": jnp.float32(present), "others": jnp.float32(others)}
        return replace(federation, uploads=Canary(**own, target=target, **worst))

    def released(present: float, others: float) -> np.ndarray:
        simulation = Simulation(algorithm, world(present, others), **options)
        state, seen = simulation.init(rounds), []
        before = _flat(_of_server(state.states), seeds)
        for _ in range(rounds):
            state, _ = simulation.step(state)
            after = _flat(_of_server(state.states), seeds)
            seen.append(after - before)
            if not stage.noise_of_sums:
                uploaded = jax.tree.map(lambda x: x[:, client], state.states.errors)
                seen.append(_flat(uploaded, seeds))
            before = after
        return np.concatenate(seen, axis=1)

    result = simulate(algorithm, world(1.0, 0.0), rounds, chunk=1, **options)
    assert result.privacy is not None
    stated = [
        replace(result, privacy=result.privacy | {"delta": delta}).epsilons()[:, client].max()
        for delta in deltas
    ]
    others = OTHERS if privacy.unit == "client" else OTHERS[:1]
    pairs = ((released(1.0, other), released(0.0, other)) for other in others)
    return attacked(pairs, deltas, stated)


@checked
def audit_uploads(
    stage: Uploads,
    *,
    members: int = 20,
    rounds: int = 1,
    rate: float = 1.0,
    draws: int = 4000,
    deltas: Sequence[float] = DELTAS,
    seed: int = 0,
) -> Audit:
    """Attack the upload stage alone, as `audit_privacy` does, without local training.

    The attacker sees the first client's upload of each round or, with distributed noise, the sum,
    and the adaptive clipping bound.

    Args:
      stage: with client-level privacy.
      members: number of clients.
      rounds: number of releases.
      rate: probability that a client takes part in a round; below 1 it needs distributed noise.
      draws: number of runs with the contribution, and of those without it.
      deltas: compared beside that of the stage.
      seed: of all draws.

    Raises:
      InputError: no client-level privacy, or a rate that can't be used.
    """
    privacy = stage.privacy
    if privacy is None:
        raise InputError("audit_uploads needs a stage with ClientPrivacy.")
    rates = "in (0, 1]" if privacy.distributed else "1 with noise on every upload"
    require(rate == 1 or (privacy.distributed and 0 < rate < 1), "rate", rate, rates)
    deltas = sorted({float(privacy.delta), *deltas})
    nothing = [jnp.zeros((members, 2))]

    def one_round(carry: tuple, key: Key) -> tuple:
        memory, sizes = carry
        of_cohort, of_upload = jax.random.split(key)
        here = jax.random.uniform(of_cohort, (members,)) < rate
        ids = jnp.arange(members)
        info = UploadInfo(ids, here, here, MODEL, of_upload, expected=members * rate)
        (got,), after = stage(_moved(nothing, sizes), nothing, info, memory)
        clip = privacy.clip if memory.bound is None else memory.bound
        seen = (jnp.sum(got, axis=0) if privacy.distributed else got[0]) / clip
        if after.bound is not None:
            seen = jnp.append(seen, jnp.log(after.bound / clip))
        return (after, sizes), seen

    @jax.jit
    def released(present: float, others: float) -> jax.Array:
        sizes = jnp.full((members,), others).at[0].set(present)

        def run(key):
            start = stage.first_memory(nothing), sizes
            return lax.scan(one_round, start, jax.random.split(key, rounds))[1].reshape(-1)

        return jax.vmap(run)(jax.random.split(jax.random.key(seed), draws))

    release = Release(float(privacy.noise), rounds, rate)
    stated = [epsilon([release], delta) for delta in deltas]
    pairs = ((released(1.0, other), released(0.0, other)) for other in OTHERS)
    return attacked(pairs, deltas, stated)


@struct
class Canary(Uploads):
    """`Uploads` whose members send worst-case updates, and that keeps what the server receives.

    Attributes:
      target: permanent id of the attacked client.
      present: size of its updates in units of `FAR`, or None to leave all updates as they are.
      others: that of the others' updates.
    """

    target: Any = None
    present: Any = None
    others: Any = None

    @property
    def remembers(self) -> bool:
        return True

    def first_memory(self, shared: Stack) -> StageMemory:
        errors = jax.tree.map(jnp.zeros_like, shared)
        return Uploads.first_memory(self, shared)._replace(errors=errors)

    def __call__(self, sent, reference, info, memory):
        if self.present is not None:
            sizes = jnp.where(info.ids == self.target, self.present, self.others)
            sent = _moved(reference, sizes)
        received, after = Uploads.__call__(
            self, sent, reference, info, memory._replace(errors=None)
        )
        if memory.errors is not None:
            after = after._replace(errors=jax.tree.map(jnp.subtract, received, reference))
        return received, after


def _moved(reference: Stack, sizes: jax.Array) -> Stack:
    """Return what members send whose updates are `sizes` [M] in one number, in units of `FAR`."""
    leaves, tree = jax.tree.flatten(reference)
    first = leaves[0].reshape(len(sizes), -1).at[:, 0].add(FAR * sizes.astype(leaves[0].dtype))
    return tree.unflatten([first.reshape(leaves[0].shape), *leaves[1:]])


def _with_sample(federation: Federation, client: int, present: float) -> Federation:
    """Return the federation whose client has its first training sample, or a void in its place.

    A sample that is not a number has a gradient of zero.
    """
    data = federation.data
    if not jnp.issubdtype(data.samples.dtype, jnp.inexact):
        raise InputError("audit_privacy of samples needs samples of floats.")
    place = data.train.index[data.train.offset[client]]
    sample = jnp.where(present, data.samples[place], jnp.nan)
    return replace(federation, data=replace(data, samples=data.samples.at[place].set(sample)))


def _of_server(states: State) -> list[jax.Array]:
    """Return the leaves [R, ...] of all fields without a client axis."""
    leaves = []
    for name, axes in client_axes(states).items():
        value = getattr(states, name)
        leaves += [] if axes else jax.tree.leaves(value) if axes == 0 else _of_server(value)
    return leaves


def _flat(states: Tree, runs: int) -> np.ndarray:
    """Return the float leaves [R, ...] as one array [R, d]."""
    leaves = [leaf for leaf in jax.tree.leaves(states) if jnp.issubdtype(leaf.dtype, jnp.inexact)]
    rows = [np.asarray(leaf, np.float64).reshape(runs, -1) for leaf in leaves]
    return np.concatenate([np.zeros((runs, 0)), *rows], axis=1)
