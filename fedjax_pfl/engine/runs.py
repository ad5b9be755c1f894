"""Runs of a simulation, which differ in seed and traced settings: the outer axis of its program."""

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from functools import partial
from itertools import product
from typing import Any, get_type_hints

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec

from fedjax_pfl.core.algorithm_registry import is_static, validate
from fedjax_pfl.core.client_privacy import client_noise_within
from fedjax_pfl.core.context import Context
from fedjax_pfl.core.interface import Algorithm
from fedjax_pfl.core.round_observer import RoundFacts
from fedjax_pfl.core.sample_privacy import noise_within
from fedjax_pfl.core.upload_checks import check_noise
from fedjax_pfl.engine.round_facts import round_facts
from fedjax_pfl.execution.mesh import RUNS, mesh_of
from fedjax_pfl.federation.adaptation import Adaptation
from fedjax_pfl.federation.federation import Federation
from fedjax_pfl.federation.local_training import RATES
from fedjax_pfl.federation.options import checked_number
from fedjax_pfl.federation.swept_numbers import number_paths, sentences, with_numbers
from fedjax_pfl.federation.threat_options import STRENGTHS
from fedjax_pfl.uploads.attacks import ALittleIsEnough, Enlarge
from fedjax_pfl.utils import keys, trees
from fedjax_pfl.utils.conversions import convert, is_list
from fedjax_pfl.utils.errors import InputError, refused, require, unknown_name
from fedjax_pfl.utils.structs import static, struct
from fedjax_pfl.utils.typing import Scalar, Tree

# Values by name, of which all combinations are taken, or a list of settings.
Settings = Mapping[str, Sequence[Any]] | Sequence[Mapping[str, Any]]
MAX_RUNS = 2**16  # seeds times settings, however small the model


@struct
class Run:
    """One run: an algorithm with a seed and a setting. R runs are one `Run` with leaves [R, ...].

    Attributes:
      algorithm: with its hyperparameters.
      seed: uint32; varies initialization, cohorts and batches.
      numbers: values in place of the federation's numbers of these names, see `number_paths`.
      backbone: leaves of the network that no client's model holds, if they are there already.
      rounds_in_noise: see `ContextBase`.
      constants: of the algorithm's class, see `class_constants`.
    """

    algorithm: Algorithm
    seed: Scalar
    numbers: dict[str, Scalar]
    backbone: Tree = None
    rounds_in_noise: bool = static(default=False)
    constants: tuple[Any, ...] = static(default=())

    def context(self, federation: Federation, t: Scalar, total: Scalar) -> Context:
        """Return round `t` of `total` as this run's context."""
        key = jax.random.key(self.seed)
        cohort = federation.participation.cohort(keys.derive(key, "cohort"), t, federation.data.ids)
        if federation.keeps_failed:
            cohort = replace(cohort, keeps_failed=True)
        prepared = with_numbers(self._with_backbone(federation, key), self.numbers)
        prepared = replace(prepared, data=prepared.data.at_round(t))
        privacy = prepared.sample_privacy
        if privacy is not None:  # where a longer run starts over, it has other noise
            position = (prepared.training.rate(t, total), *[total] * self.rounds_in_noise)
            prepared = replace(prepared, sample_privacy=replace(privacy, position=position))
        return Context(prepared, key, t, total, cohort, rounds_in_noise=self.rounds_in_noise)

    def with_backbone(self, federation: Federation) -> "Run":
        """Return the run with its backbone, so that rounds need not compute it again."""
        return replace(
            self, backbone=self._with_backbone(federation, jax.random.key(self.seed)).backbone
        )

    def _with_backbone(self, federation: Federation, key: jax.Array) -> Federation:
        if self.backbone is not None:
            return replace(federation, backbone=self.backbone)
        return federation.with_backbone(key)


def one_run(algorithm: Algorithm) -> Run:
    """Return a single run with the federation's numbers, for tracing."""
    seed: Any = np.uint32(0)
    return Run(algorithm, seed, {})


def over_runs(
    fn: Callable[..., Any], operands: Tree, federation: Federation, *others: Tree
) -> Tree:
    """Map `fn(run, federation, *others)` over the runs [R, ...], by the federation's execution.

    Runs are lanes of a vmap or are mapped one by one (`Execution.seeds`), in `Execution.run_groups`
    parts, one for each group of devices. Groups of one device are independent. Groups of several
    devices run in lockstep, since the devices of a group exchange data: `fn` is vectorized over the
    parts, and a condition that differs between them computes both branches.

    If the parts do not divide the runs, the last run is repeated, and every device has all results.
    """
    execution = federation.execution
    parts = execution.run_groups
    if parts == 1:
        return _one_part(fn, operands, federation, *others)
    count = jax.tree.leaves(operands)[0].shape[0]
    length = -(-count // parts)
    if count % parts:  # fill the last part up with copies of the last run
        slots = np.minimum(np.arange(parts * length), count - 1)
        operands = trees.take(operands, slots)
    if execution.devices == 1:
        theirs, whole = PartitionSpec(RUNS), PartitionSpec()
        done = jax.shard_map(
            partial(_one_part, fn),
            mesh=mesh_of(1, parts),
            in_specs=(theirs, whole, *(whole for _ in others)),
            out_specs=theirs,
            check_vma=False,
        )(operands, federation, *others)
    else:
        done = jax.vmap(lambda part: _one_part(fn, part, federation, *others), spmd_axis_name=RUNS)(
            jax.tree.map(lambda leaf: leaf.reshape(parts, length, *leaf.shape[1:]), operands)
        )
        done = jax.tree.map(lambda leaf: leaf.reshape(parts * length, *leaf.shape[2:]), done)
    return jax.tree.map(lambda leaf: leaf[:count], done) if count % parts else done


def _one_part(fn: Callable[..., Any], operands: Tree, federation: Federation, *others) -> Tree:
    """Map as `over_runs` does, on the devices of one part of the runs."""

    def one(run):
        return fn(run, federation, *others)

    as_lanes = federation.execution.seeds == "vmap"
    return jax.vmap(one)(operands) if as_lanes else lax.map(one, operands)


def served(runs: Run, federation: Federation) -> np.ndarray:
    """Return which clients each run serves with models, bool [R, N]."""
    no_round: Any = None
    ctx = Context(federation, no_round, no_round, no_round, no_round)
    return np.asarray(jax.vmap(lambda run: run.algorithm.served_clients(ctx))(runs))


def make_runs(
    algorithm: Algorithm,
    federation: Federation,
    seeds: Sequence[int],
    settings: Mapping[str, Sequence[Any]] | None = None,
    rounds: int = 1,
    adapt: Adaptation | None = None,
    facts: RoundFacts | None = None,
) -> Run:
    """Return all combinations of seeds and settings, seeds outermost, as host arrays [R, ...].

    Args:
      settings: as `swept_values` returns them.
      rounds, adapt: of the simulation, over which a `dp_epsilon` is divided.
      facts: of the algorithm's rounds, if they are known.

    Raises:
      InputError: an unknown or static setting, or an invalid value.
    """
    settings = dict(settings or {})
    count = _count(algorithm, federation, settings, len(seeds))
    noise = partial(client_noise_within, federation=federation, rounds=rounds)
    if federation.sample_privacy is not None:
        noise = partial(noise_within, federation=federation, rounds=rounds, adapt=adapt)
    variants = [
        _variant(
            algorithm,
            federation,
            {name: values[h] for name, values in settings.items()},
            noise,
            facts if settings.keys().isdisjoint(vars(algorithm)) else None,
        )
        for h in range(count)
    ]
    grid = [replace(variant, seed=np.uint32(seed)) for seed in seeds for variant in variants]
    return jax.tree.map(lambda *leaves: np.stack(leaves), *grid)


def remarks(
    algorithm: Algorithm,
    federation: Federation,
    settings: Mapping[str, Any],
    rounds: int,
    adapt: Adaptation | None = None,
    ended: bool = True,
) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]:
    """Return (remarks common to all settings, further remarks by setting or ()).

    All values of `settings` are valid; `adapt` is the simulation's, which has `ended` after all of
    its rounds.
    """
    messages, never = [], _never_reached(federation, rounds)
    for h in range(_count(algorithm, federation, dict(settings), 1)):
        chosen = {name: values[h] for name, values in settings.items()}
        numbers = {k: np.float64(chosen[k]) for k in number_paths(federation) if k in chosen}
        variant = _with_own(algorithm, chosen)
        theirs = with_numbers(federation, numbers)
        messages.append(
            [
                *variant.remarks(theirs),
                *variant.round_remarks(theirs, rounds),
                *sentences(theirs),
                *never,
                *_without_effect(theirs),
                *(_late_rate((adapt, variant.adaptation()), theirs, rounds) if ended else []),
            ]
        )
    common = tuple(one for one in messages[0] if all(one in some for some in messages))
    single = tuple(tuple(one for one in some if one not in common) for some in messages)
    return common, single if any(single) else ()


def _never_reached(federation: Federation, rounds: int) -> list[str]:
    """Return notes on changes of the federation that come after so many rounds."""
    window, drift = federation.participation.window, federation.data.drift
    first = {}
    if window is not None:
        arrives, leaves = np.asarray(window).T
        first |= {"arrive": arrives, "leave": leaves}
    if drift is not None:
        first["change their concept"] = np.asarray(drift.starts).max(axis=1)
    return [
        f"some clients would {what} after the last round, {rounds}"
        for what, starts in first.items()
        if np.any((starts >= rounds) & (starts < 2**31 - 1))
    ]


def _without_effect(federation: Federation) -> list[str]:
    """Return a note if attackers do no harm in a round with their usual share."""
    stage: Any = federation.uploads
    attack = getattr(stage, "attack", None)
    if not isinstance(attack, ALittleIsEnough):
        return []
    members, clients = round(federation.participation.expected), federation.num_clients
    return attack.remarks(members, max(1, round(len(stage.attackers) * members / clients)))


def _late_rate(ways: Sequence[Adaptation | None], federation: Federation, rounds: int) -> list[str]:
    """Return a note if copies train at the rate of a last round that hardly moves a model."""
    training, factors = federation.training, federation.training.rate_factors(rounds)
    first, last = (factors[0], factors[-1]) if len(factors) else (1.0, 1.0)
    last *= float(training.learning_rate_decay) ** (rounds - 1)
    follow = any(how is not None and how.learning_rate is None for how in ways)
    if not follow or last >= 0.01 * first:
        return []
    return [f"copies train at the last round's rate, {last / first:.2g} times the first one's"]


def _with_own(algorithm: Algorithm, chosen: Mapping[str, Any]) -> Algorithm:
    """Return the algorithm with the values that are its hyperparameters."""
    own = {name: value for name, value in chosen.items() if name in vars(algorithm)}
    return converted(replace(algorithm, **own))


def combinations(values: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Return all combinations of values by name; those of the last name vary fastest."""
    return [dict(zip(values, row, strict=True)) for row in product(*values.values())]


def swept_values(settings: Settings | None) -> dict[str, list[Any]]:
    """Return the values of H settings by name, H of each; {} without settings.

    Args:
      settings: see `Simulation`.

    Raises:
      InputError: a name without a list of values, other names in one of the settings, or too many.
    """
    rows = settings or [{}]
    if isinstance(rows, Mapping):
        for name, values in rows.items():
            listed = is_list(values) and len(values) > 0
            require(listed, f"setting {name!r}", values, "at least one value, in a list")
        count = math.prod(map(len, rows.values()))
        require(count <= MAX_RUNS, "Number of settings", count, f"at most {MAX_RUNS:,}")
        rows = combinations(rows)
    for row in rows:
        same = row.keys() == rows[0].keys()
        require(same, "names in settings", [*row], f"the same in each, as {[*rows[0]]}")
    return {name: [row[name] for row in rows] for name in rows[0]}


def _count(
    algorithm: Algorithm, federation: Federation, settings: dict[str, Sequence[Any]], seeds: int
) -> int:
    """Return the number of settings, the length of each list."""
    for name, values in settings.items():
        _check_sweepable(algorithm, federation, name)
        what = f"setting {name!r}"
        empty = any(one is None for one in values) and len(values) > 1
        require(not empty, what, values, "without None: simulate that setting by itself")
        fits = len(values) * seeds <= MAX_RUNS
        require(fits, what, values, f"at most {MAX_RUNS:,} values, seeds times settings")
    both = {"dp_noise", "dp_epsilon"} <= set(settings)
    require(not both, "settings", list(settings), "those with one of dp_noise and dp_epsilon")
    return len(next(iter(settings.values()), [None]))


def sweepable(algorithm: Algorithm, federation: Federation | None = None) -> tuple[str, ...]:
    """Return the names of everything that `simulate` can sweep inside one program.

    These are the algorithm's traced hyperparameters, "learning_rate", "learning_rate_decay" and
    further numbers of a federation that has them: "dp_clip", "dp_noise" or "dp_epsilon", options of
    its attack, such as "attack_factor", and of its aggregator, such as "aggregator_radius". A swept
    "dp_noise" or "dp_epsilon" takes the place of what the federation has.
    """
    own = (field.name for field in fields(algorithm) if not is_static(field))
    if federation is None:
        return (*own, *RATES)
    return (*own, *number_paths(federation), *["dp_epsilon"] * (federation.privacy is not None))


def _check_sweepable(algorithm: Algorithm, federation: Federation, name: str) -> None:
    """Raise `InputError` unless a setting can be swept."""
    names = sweepable(algorithm, federation)
    if name in STRENGTHS and name not in names:
        part, _, option = name.partition("_")
        raise InputError(
            f"The setting {name!r} needs an {part} whose option {option} has an effect, and this "
            "federation has none."
        )
    if name in ("dp_clip", "dp_noise", "dp_epsilon") and name not in names:
        raise InputError(f"The setting {name!r} needs dp='client' or 'sample', got 'none'.")
    if name in vars(algorithm) and name not in names:
        raise InputError(
            f"{name!r} of {algorithm.name!r} is part of the program's structure and can't be "
            "swept inside it; simulate each of its values."
        )
    if name not in names:
        raise unknown_name(f"setting of {algorithm.name!r}", name, names)


def _variant(
    algorithm: Algorithm,
    federation: Federation,
    chosen: dict[str, Any],
    noise: Callable[..., Any],
    facts: RoundFacts | None,
) -> Run:
    """Return one setting's algorithm and numbers as host arrays without the axis of runs.

    `noise(epsilon, algorithm, facts)` is the noise multiplier of a `dp_epsilon`.
    """
    dtype = federation.task.dtype
    variant = _with_own(algorithm, chosen)
    if chosen:
        validate(variant)
        variant.check(federation)
    if facts is None and federation.privacy is not None:
        facts = round_facts(one_run(variant), federation)
    own = vars(variant)
    numbers = {name: checked_number(name, v) for name, v in chosen.items() if name not in own}
    stated = None if federation.privacy is None else federation.privacy.epsilon
    epsilon = numbers.get("dp_epsilon", None if "dp_noise" in numbers else stated)
    if epsilon is not None:  # kept beside its noise, to identify runs of any number of rounds
        numbers |= {"dp_epsilon": epsilon, "dp_noise": noise(epsilon, variant, facts)}
    swept = with_numbers(federation, numbers)
    if swept.aggregator is not None:
        swept.aggregator.validate(int(federation.participation.expected))
    attack = getattr(swept.uploads, "attack", None)
    if isinstance(attack, Enlarge):
        attack.validate()
    if federation.privacy is not None:
        clip: Any = numbers.get("dp_clip", federation.privacy.clip)
        noisy: Any = numbers.get("dp_noise", federation.privacy.noise)
        check_noise(federation, float(clip), float(np.max(noisy)))
    seed: Any = np.uint32(0)
    wide = {"learning_rate_decay": str(jnp.promote_types(dtype, jnp.float32))}
    numbers = {name: _strong(value, wide.get(name, dtype)) for name, value in numbers.items()}
    variant = jax.tree.map(lambda leaf: _strong(leaf, dtype), variant)
    return Run(
        variant,
        seed,
        numbers,
        rounds_in_noise=facts is not None and facts.reads_num_rounds,
        constants=class_constants(type(algorithm)),
    )


def class_constants(cls: type) -> tuple[Any, ...]:
    """Return the attributes of a class and its bases, by which programs differ as well.

    A class variable or a method may be given another value between two simulations.
    """
    named = [item for base in cls.__mro__ for item in vars(base).items() if item[0][:2] != "__"]
    return tuple((name, _constant(value)) for name, value in named)


def _constant(value: Any) -> Hashable:
    """Return a hashable value that differs where another one does."""
    if isinstance(value, np.ndarray | np.generic | jax.Array):
        array = np.asarray(value)
        return array.shape, str(array.dtype), array.tobytes()
    if isinstance(value, tuple | list):
        return type(value), *map(_constant, value)
    if isinstance(value, dict):
        return type(value), *((key, _constant(one)) for key, one in value.items())
    try:
        hash(value)
    except TypeError:
        return repr(value)
    return value


def converted(algorithm: Algorithm) -> Algorithm:
    """Return the algorithm with hyperparameters that programs can represent.

    Raises:
      InputError: programs can't represent a value, or it does not have its field's type.
    """
    if not is_dataclass(algorithm):
        raise refused("algorithm", type(algorithm).__name__, "a class below @core.algorithm(NAME)")
    hints, given = get_type_hints(type(algorithm)), vars(algorithm)
    values = {k: convert(k, v, hints[k]) for k, v in given.items()}
    for field in fields(algorithm):
        if isinstance(values.get(field.name), str) and not is_static(field):
            raise InputError(
                f"{field.name} of {algorithm.name} is text, which no program can trace: declare it "
                f"with core.static({values[field.name]!r})."
            )
    return replace(algorithm, **values)


def _strong(leaf: Any, dtype: str) -> Any:
    """Return a strongly typed host array: a Python number would compile the program again."""
    leaf = np.asarray(leaf)
    kinds = {"f": dtype, "i": "int32", "u": "int32"}
    return leaf.astype(kinds.get(leaf.dtype.kind, leaf.dtype))
