"""Sample-level differential privacy of an algorithm: its checks, noise and releases.

Numbers of samples, rounds and local steps, and which clients take part, are taken as public.
"""

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np

from fedjax_pfl.aggregation.leaf_plan import trainable
from fedjax_pfl.core.context import Context
from fedjax_pfl.core.interface import Algorithm
from fedjax_pfl.core.round_observer import RoundFacts, RoundObserver
from fedjax_pfl.federation.adaptation import Adaptation
from fedjax_pfl.federation.batching import IN_ORDER, Schedule
from fedjax_pfl.federation.federation import Federation
from fedjax_pfl.federation.optimizers import check_update
from fedjax_pfl.uploads.accounting import noise_for_each, training_releases
from fedjax_pfl.utils.errors import InputError

POISSON, ACCOUNTED = "Poisson sampling", "fixed minibatches accounted as Poisson sampling"


def check_sample_privacy(algorithm: Algorithm, federation: Federation) -> None:
    """Raise `InputError` if the noise of local gradients does not cover what an algorithm uses.

    Args:
      federation: prepared by the algorithm.
    """
    privacy, name = federation.sample_privacy, algorithm.name
    if privacy is None:
        return
    uncovered = list(algorithm.unprotected)
    if not algorithm.needs_validation:  # else it depends on validation samples, see below
        uncovered += algorithm.also_sent
    if uncovered:
        raise InputError(
            f"Sample-level differential privacy does not cover {uncovered[0]} that a client of "
            f"{name} computes from its samples: take dp='client', or another algorithm."
        )
    if algorithm.needs_validation and not privacy.public_validation:
        raise InputError(
            f"{name} uses validation samples without noise: declare them public with "
            "dp_public_validation, or take another algorithm."
        )
    statistics = [path for path in federation.plan.paths if not trainable(path)]
    if statistics:
        raise InputError(
            f"Sample-level differential privacy can't cover the batch statistics of "
            f"{statistics[0]}: take a network without batch normalization."
        )
    dtype = np.dtype(federation.task.dtype)
    if dtype.itemsize < 4:
        raise InputError(f"Differential privacy needs noise in at least float32, got {dtype}.")
    training = federation.training
    if training.batch_order in IN_ORDER:
        raise InputError(
            f"With batch_order={training.batch_order!r} each sample is in one known minibatch: use "
            "'poisson', 'fresh' or 'shuffled' with dp='sample'."
        )
    if privacy.strict and training.batch_order != "poisson":
        raise InputError(
            f"With dp_strict minibatches must be drawn as they are accounted: take "
            f"batch_order='poisson' in place of {training.batch_order!r}."
        )
    if callable(training.augment):
        raise InputError(
            "An augment function of your own may mix samples of a minibatch: use a named one with "
            "dp='sample'."
        )
    shapes = federation.model_shapes["params"]
    check_update("optimizer under dp='sample'", training.make_optimizer(), shapes, private=True)
    extra = training.extra_loss
    if extra is not None and extra.couples_samples:
        raise InputError(
            f"The extra loss {type(extra).__name__} depends on all samples of a client, and can't "
            "be clipped sample by sample: leave it out with dp='sample'."
        )


def check_strict(algorithm: Algorithm, federation: Federation, facts: RoundFacts) -> None:
    """Raise `InputError` if dp_strict is on and a local loop draws otherwise than accounted."""
    privacy = federation.sample_privacy
    if (
        privacy is not None
        and privacy.strict
        and not all(one.schedule.poisson for one in facts.trainings)
    ):
        raise InputError(
            f"With dp_strict minibatches must be drawn as they are accounted, and {algorithm.name} "
            "has a schedule of its own without poisson=True: leave dp_strict out."
        )


def with_counted_gradients(ctx: Context, observer: RoundObserver) -> Context:
    """Return the context in which an observer counts gradients with noise."""
    privacy = ctx.federation.sample_privacy
    if privacy is None:
        return ctx
    privacy = replace(privacy, observer=observer)
    return replace(ctx, federation=replace(ctx.federation, sample_privacy=privacy))


def noise_within(
    epsilon: float,
    algorithm: Algorithm,
    facts: RoundFacts,
    *,
    federation: Federation,
    rounds: int,
    adapt: Adaptation | None = None,
) -> np.ndarray:
    """Return the noise multiplier of each client that keeps all rounds within `epsilon`, [N].

    It assumes that the client takes part in every round, and that its final model is adapted in
    each way. A client that is absent in some rounds spends less.

    Args:
      epsilon: of the whole run.
      algorithm, facts, federation, adapt: see `releases`.
      rounds: of the run.

    Raises:
      InputError: no noise is large enough, or dp-accounting is not installed.
    """
    assert federation.sample_privacy is not None
    released = releases(algorithm, federation, facts, adapt)
    counts = most_gradients(federation, facts, rounds).tolist()
    wanted = [
        training_releases(released, 1.0, client, count) for client, count in enumerate(counts)
    ]
    noise = noise_for_each(epsilon, federation.sample_privacy.delta, wanted)
    return np.asarray(noise, federation.task.dtype)


def most_gradients(federation: Federation, facts: RoundFacts, rounds: int) -> np.ndarray:
    """Return how many gradients with noise a client computes in `rounds` at most, int64 [N]."""
    sizes = np.asarray(federation.data.train.size).astype(np.int64)
    count = np.zeros_like(sizes)
    for one in facts.trainings:
        steps = one.schedule.fitting(federation.data.train.capacity).total_steps(sizes)
        count = count + one.times(rounds) * one.gradients * steps
    return count


def releases(
    algorithm: Algorithm,
    federation: Federation,
    facts: RoundFacts,
    adapt: Adaptation | None = None,
) -> dict[str, Any]:
    """Return what clients release, as plain lists and numbers that a result keeps.

    Args:
      algorithm, federation: of the simulation.
      facts: of one of its rounds.
      adapt: the adaptation of copies before they are scored, or None.

    Returns:
      sampling: the assumption of the accounting, in words.
      sizes: [N], training samples of each client.
      rates: [N], probability that a sample is in a minibatch; the highest of all schedules.
      most: samples to which a Poisson minibatch is cut, or None.
      per_batch: gradients computed on each minibatch, the most of all trainings.
      adapted: [rates [N], most, numbers of minibatches [N]] of each adaptation of the final model.
    """
    sizes = np.asarray(federation.data.train.size).astype(np.int64)
    capacity = federation.data.train.capacity
    if adapt is not None and adapt.as_in_a_round:
        adapt = None  # only the scores of these copies leave a client
    adaptations = [
        how.schedule(federation.schedule).fitting(capacity)
        for how in (algorithm.adaptation(), adapt)
        if how is not None
    ]

    def rates(schedule: Schedule) -> np.ndarray:
        expected = schedule.fitting(capacity).expected_batch(sizes)
        return expected / np.maximum(sizes, 1)

    def most(schedule: Schedule) -> int | None:
        return schedule.fitting(capacity).slots(capacity) if schedule.poisson else None

    per_batch = Counter[str]()
    for one in facts.trainings:  # several with one purpose are on the same minibatches
        per_batch[one.minibatches] += one.per_batch
    schedules = {one.schedule for one in facts.trainings} or {federation.schedule}
    cuts = [most(one) for one in schedules]
    return {
        "sampling": POISSON if all(one.poisson for one in schedules) else ACCOUNTED,
        "sizes": sizes.tolist(),
        "rates": np.max([rates(one) for one in schedules], axis=0).tolist(),
        "most": None if None in cuts else max(cut for cut in cuts if cut is not None),
        "per_batch": max(per_batch.values(), default=1),
        "adapted": [
            [rates(one).tolist(), most(one), one.total_steps(sizes).tolist()] for one in adaptations
        ],
    }
