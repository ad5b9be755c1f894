"""Models and scores of new clients, which take part in no round."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_pfl.data.federated import FederatedData, Split, make_split
from fedjax_pfl.data.partitions.ragged import Ragged
from fedjax_pfl.data.partitions.statistics import SPLITS
from fedjax_pfl.data.scaling import SHARED, fitted
from fedjax_pfl.data.vocabulary import token_ids, whole_texts
from fedjax_pfl.engine.final_models import Final
from fedjax_pfl.execution.locations import short_locations
from fedjax_pfl.execution.processes import readable
from fedjax_pfl.federation.batching import IN_ORDER
from fedjax_pfl.federation.data_sharding import place_on_devices
from fedjax_pfl.federation.federation import Federation
from fedjax_pfl.federation.participation_options import ParticipationOptions
from fedjax_pfl.training.scoring import score
from fedjax_pfl.utils.boundary import checked
from fedjax_pfl.utils.conversions import convert, is_list
from fedjax_pfl.utils.errors import InputError, require

DRAW = 2027  # seed of the choice of samples that new clients train on


@checked
def split_new_clients(federation: Federation, count: int) -> tuple[Federation, Federation]:
    """Split off the last `count` clients: (federation without them, federation of them).

    Permanent ids stay, so that no client's samples, batches or initial model change.

    Raises:
      InputError: no client would be left, some of the new clients are stragglers, data or clients
        change over time, or the others are too few for their attackers or robust rule.
    """
    total, count = federation.num_clients, convert("new_clients", count, int)
    require(1 <= count < total, "new_clients", count, f"in 1..{total - 1} of {total} clients")
    steady = federation.data.drift is None and federation.participation.window is None
    require(steady, "new_clients", count, "0 with concept drift, arrivals or departures")
    rows, late = np.arange(total - count), np.asarray(federation.participation.delay)
    if late[total - count :].any():
        raise InputError(
            f"The last {count} clients must be new, but client "
            f"{total - count + int(np.argmax(late[total - count :] > 0))} of them is a straggler."
        )
    before, ids = federation.participation, np.asarray(federation.data.ids)[: total - count]
    among = ParticipationOptions(
        before.cohort_size / total if before.poisson is None else before.poisson,
        sampling="fixed" if before.poisson is None else "poisson",
        stragglers={int(row): int(late[row]) for row in rows if late[row]},
        straggler_schedule=before.schedule,
    )
    remaining = among.build(len(rows))
    _check_threat(federation, ids, int(remaining.expected))
    data, new = (_select(federation.data, some) for some in (rows, np.arange(total - count, total)))
    if data.scaling == SHARED or data.vocabulary is not None:
        fields = _fitted(data)
        data, new = (replace(one, **fields) for one in (data, new))
    return (
        replace(federation, data=data, participation=remaining),
        replace(federation, data=new, participation=ParticipationOptions().build(count)),
    )


def _fitted(data: FederatedData) -> dict[str, jax.Array]:
    """Return the fields of `data` that are statistics of its clients' training samples."""
    if data.scale.ndim == 0:
        raise InputError(
            "new_clients can't be combined with cache_features where input_scaling or the "
            "vocabulary is fitted: the features depend on the new clients' samples, too."
        )
    rows, count = np.asarray(data.samples), math.prod(data.sample_shape)
    train, index = data.train, np.asarray(data.train.index)
    ends = zip(np.asarray(train.offset), np.asarray(train.size), strict=True)
    lists = Ragged.of([index[start : start + size] for start, size in ends])

    def samples(at):
        return rows[at, :count].reshape(-1, *data.sample_shape)

    if data.tokens is not None and data.vocabulary is not None:
        labels = np.asarray(data.labels)

        def texts(at):
            return whole_texts(samples(at), labels[at])

        known = token_ids(data.vocabulary, len(data.tokens), texts, lists.idx)
        return {"tokens": jnp.asarray(known)}
    scale, shift = fitted(data.scaling, samples, lists)
    return {"scale": jnp.asarray(scale), "shift": jnp.asarray(shift)}


def _check_threat(federation: Federation, ids: np.ndarray, members: int) -> None:
    """Check attackers and a robust rule for the remaining clients `ids`, `members` in a round."""
    rule, stage = federation.aggregator, federation.uploads
    if rule is not None:
        rule.validate(members)
        root, allowed = getattr(rule, "root", None), "the id of a client that is not new"
        require(root is None or int(root) in ids, "root of the robust rule", root, allowed)
    attacking = None if stage is None else stage.attacking(jnp.asarray(ids))
    number = 0 if attacking is None else int(np.sum(attacking))
    allowed = f"fewer than half of the {len(ids)} clients that are not new"
    require(2 * number < len(ids), "attackers", number, allowed)


def _select(data: FederatedData, rows: np.ndarray) -> FederatedData:
    """Return the data of some clients; the pool of samples is shared, not copied."""

    def part(split: Split) -> Split:
        size = np.asarray(split.size)[rows]
        return replace(
            split,
            offset=jnp.asarray(np.asarray(split.offset)[rows]),
            size=jnp.asarray(size),
            capacity=max(int(size.max(initial=0)), 1),
            total=int(size.sum()),
            equal=bool((size == size[0]).all()),
        )

    return replace(
        data,
        **{name: part(data.split(name)) for name in SPLITS},
        class_counts=data.class_counts[rows],
        ids=data.ids[rows],
        label_map=None if data.label_map is None else data.label_map[rows],
        turns=None if data.turns is None else data.turns[rows],
        scale=data.scale[rows] if data.scale.ndim > 1 else data.scale,
        shift=data.shift[rows] if data.shift.ndim > 1 else data.shift,
    )


def with_samples(federation: Federation, fraction: float) -> Federation:
    """Return the federation with a random part of each client's training samples, one at least.

    A client's permanent id determines the order in which its samples are drawn, so a larger
    fraction has the samples of a smaller one too.
    """
    require(0 < fraction <= 1, "fractions", fraction, "a fraction in (0, 1]")
    if fraction == 1:
        return federation
    data = federation.data
    sizes, offsets, index = (
        np.asarray(leaf) for leaf in (data.train.size, data.train.offset, data.train.index)
    )
    kept = np.minimum(sizes, np.maximum(1, np.floor(fraction * sizes + 0.5))).astype(np.int64)
    drawn = [
        start + np.sort(np.random.default_rng([int(one), DRAW]).permutation(size)[:count])
        for one, start, size, count in zip(np.asarray(data.ids), offsets, sizes, kept, strict=True)
    ]
    train = make_split(index[np.concatenate(drawn)], np.append(0, np.cumsum(kept)))
    counts = jnp.asarray(_class_counts(data, train), data.class_counts.dtype)
    return replace(federation, data=replace(data, train=train, class_counts=counts))


def _class_counts(data: FederatedData, train: Split) -> np.ndarray:
    """Return the samples of each client and class in a split; see `FederatedData.class_counts`."""
    owners = np.repeat(np.arange(data.num_clients), np.asarray(train.size))
    counts = np.zeros(data.class_counts.shape, np.int64)
    labels = np.zeros(len(owners), int)
    if data.num_classes:
        labels = np.asarray(data.labels)[np.asarray(train.index)[: len(owners)]]
        labels = labels if data.label_map is None else np.asarray(data.label_map)[owners, labels]
    np.add.at(counts, (owners, labels), 1)
    return counts


@short_locations()
@checked
def score_new_clients(
    final: Final,
    new_clients: Federation,
    *,
    steps: Sequence[int] = (0, 5, 20),
    fractions: Sequence[float] = (1.0,),
) -> np.ndarray:
    """Return main metrics of new clients' personalized models, [runs, fractions, steps, K].

    Args:
      final: `result.final` of a simulation without these clients.
      new_clients: their federation, from `split_new_clients`; the algorithm prepares it as it
        did that of the trained clients.
      steps: numbers of local minibatch steps, instead of the schedule's.
      fractions: fractions of its training samples, drawn at random, that each client trains on.

    Returns:
      Test accuracies, or what else the task leads with; NaN for clients without test samples.

    Raises:
      InputError: `steps` or `fractions` is no list, is empty or has a value that is not allowed.
    """
    counts = _listed("steps", steps, int)
    parts = _listed("fractions", fractions, float)
    prepared = final.program.runs.algorithm.prepare(new_clients)
    new_clients = place_on_devices(prepared)
    size, objective = np.asarray(new_clients.data.test.size), new_clients.network.objective
    main = objective.main_metric.name
    rows = jnp.arange(new_clients.num_clients, dtype=jnp.int32)

    def sums_of(run, models, backbone, federation):
        own = run.context(federation, jnp.int32(0), jnp.int32(1)).federation
        own = replace(own, backbone=backbone)
        return score(own, models, rows, "test")[0]

    runs, scored = final.program.runs, jax.jit(jax.vmap(sums_of, (0, 0, 0, None)))
    table, backbone = [], final.backbone()
    for fraction in parts:
        fewer = place_on_devices(with_samples(prepared, fraction))
        for count in counts:
            order = fewer.training.batch_order
            order = "shuffled" if order in IN_ORDER else order
            asked = fewer.replace_training(local_steps=count, batch_order=order)
            asked.schedule.validate()
            models = final.personalize(asked)
            sums = np.asarray(readable(scored(runs, models, backbone, new_clients)))
            values = np.asarray(objective.values(sums, np.maximum(size, 1))[main])
            table.append(np.where(size > 0, values, np.nan))
    runs = table[0].shape[0]
    stacked = np.stack(table, axis=1)
    return stacked.reshape(runs, len(parts), len(counts), new_clients.num_clients)


def _listed(name: str, values: Sequence[Any], kind: type) -> list[Any]:
    """Return the values of a list, converted to a type; `InputError` if there are none."""
    require(is_list(values) and len(values) > 0, name, values, "a list of at least one number")
    return [convert(name, one, kind) for one in values]
