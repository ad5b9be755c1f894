"""Options of attacks and robust aggregation."""

import math
from collections.abc import Callable, Collection, Mapping, Set
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_pfl.aggregation.aggregators import Aggregator
from fedjax_pfl.aggregation.robust_rules import AFTER_MEANS, AGGREGATORS
from fedjax_pfl.data.dataset import Dataset
from fedjax_pfl.data.federated import FederatedData
from fedjax_pfl.data.partitions.partition import Partition
from fedjax_pfl.data.poisoning import Backdoor, LabelFlip, brightness, poison
from fedjax_pfl.federation.option_groups import OptionGroup, option
from fedjax_pfl.models.metrics import Metric
from fedjax_pfl.uploads.attacks import ATTACKS, DIRECTIONS, Enlarge
from fedjax_pfl.utils.conversions import convert, is_list
from fedjax_pfl.utils.errors import InputError, find_name, require, shown, unknown_name
from fedjax_pfl.utils.metric_names import LOWER
from fedjax_pfl.utils.structs import check_needs

NONE = "none"

# Attacks on the attackers' training samples, made with the number of classes and options.
POISONS: dict[str, Callable[..., Any]] = {
    "label_flip": lambda num_classes, **options: LabelFlip(num_classes, **options),
    "backdoor": lambda num_classes, **options: Backdoor(**options),
    "dba": lambda num_classes, **options: Backdoor(**{"distributed": True, **options}),
}
# What options of attacks, rules and compressors must be, by name.
ALLOWED: dict[str, tuple[Callable[[Any], bool], str]] = {
    "bits": (lambda x: False, "absent: secure_bits has it"),
    "bits_per_number": (lambda x: 1 <= x <= 16, "in 1..16"),
    "direction": (lambda x: x in DIRECTIONS, f"one of {', '.join(DIRECTIONS)}"),
    "epsilon": (math.isfinite, "a finite number"),
    "f": (lambda x: x >= 0, "at least 0"),
    "factor": (math.isfinite, "a finite number"),
    "levels": (lambda x: 1 <= x <= 2**24, f"in 1..{2**24}"),
    "num_classes": (lambda x: False, "absent: the data set has it"),
    "excluded": (lambda x: x in (1, 2), "1 or 2"),
    "radius": (lambda x: 0 < x < math.inf, "a finite number above 0"),
    "rate": (lambda x: 0 < x <= 1, "a fraction in (0, 1]"),
    "root": (lambda x: x >= 0, "the id of a client"),
    "selected": (lambda x: x >= 0, "at least 0"),
    "share": (lambda x: 0 <= x <= 1, "a fraction in [0, 1]"),
    "size": (lambda x: x >= 1, "at least 1"),
    "smoothing": (lambda x: 0 < x < math.inf, "a finite number above 0"),
    "span": (lambda x: 0 < x < math.inf, "a finite number above 0"),
    "steps": (lambda x: 1 <= x <= 1000, "in 1..1000"),
    "then": (lambda x: x in AFTER_MEANS, f"one of {', '.join(AFTER_MEANS)}"),
    "warmup": (lambda x: x >= 0, "at least 0"),
    "z": (math.isfinite, "a finite number"),
}
ATTACK_NAMES = (NONE, *sorted({*ATTACKS, *POISONS}))

# Options of attacks and rules that can be swept within one program, such as "attack_factor".
STRENGTHS = tuple(
    sorted(
        {
            f"{what}_{one.name}"
            for what, known in (("attack", ATTACKS), ("aggregator", AGGREGATORS))
            for make in known.values()
            for one in fields(cast(Any, make()))
            if isinstance(one.default, float)
        }
    )
)


@dataclass(frozen=True)
class ThreatOptions(OptionGroup):
    """Options of Byzantine clients, and of the rule that aggregates in spite of them."""

    attack: str = option(
        NONE,
        "attack of the Byzantine clients: {choices}",
        choices=ATTACK_NAMES,
    )
    attack_options: Mapping[str, Any] | None = option(
        None, "options of the attack, such as {'factor': 10.0}", needs="attack"
    )
    attackers: str | Collection[int] | None = option(
        None, "Byzantine clients: ids such as '3,7', or a share such as '20%'"
    )
    aggregator: str = option(
        NONE,
        "robust rule in place of the server's mean: {choices}",
        choices=(NONE, *sorted(AGGREGATORS)),
    )
    aggregator_options: Mapping[str, Any] | None = option(
        None, "options of the robust rule, such as {'f': 4}", needs="aggregator"
    )

    def validate(self) -> None:
        if self.attack != NONE and self.attackers is None:
            raise InputError(f"attack={self.attack!r} needs attackers, such as '3,7' or '20%'.")

    def attackers_of(self, ids: np.ndarray) -> np.ndarray | None:
        """Return the attackers' permanent ids, or None.

        A share is rounded to a number of clients, which are drawn at random: the same ones for
        the same ids, whatever the seeds are.

        Raises:
          InputError: there is no such client, or half of the clients or more would attack.
        """
        chosen, count = self.attackers, len(ids)
        if chosen is None:
            return None
        if isinstance(chosen, str) and chosen.strip().endswith("%"):
            share = convert("attackers", chosen.strip()[:-1], float)
            require(0 < share < 50, "attackers", chosen, "a share above 0% and below 50%")
            number = max(1, int(np.floor(share / 100 * count + 0.5)))
            allowed = f"fewer than half of the {count} clients"
            require(2 * number < count, "attackers", chosen, allowed)
            # Clients of neighbouring ids often have similar data.
            drawn = np.random.default_rng(count).permutation(np.sort(ids))[:number]
            return np.sort(drawn)
        words: Any = chosen.split(",") if isinstance(chosen, str) else chosen
        several = is_list(words) or isinstance(words, Set)
        whole = several and not any("." in shown(word) for word in words)
        require(whole, "attackers", chosen, "ids such as '3,7' or a share such as '20%'")
        numbers = sorted({convert("attacker", word, int) for word in words})
        unknown = [one for one in numbers if one not in ids]
        require(not unknown, "attackers", unknown, "ids of clients")
        allowed = f"fewer than half of the {count} clients"
        require(0 < 2 * len(numbers) < count, "attackers", len(numbers), allowed)
        return np.asarray(numbers)

    def upload_attack(self) -> Any:
        """Return the attack on uploads, or None.

        Raises:
          InputError: no such option, or a backdoor's factor of 0.
        """
        if self.attack in ATTACKS:
            return made_with("attack", self.attack, ATTACKS, self.attack_options)
        factor = getattr(self.poison(2), "factor", 1.0)
        if factor == 1:
            return None
        made = Enlarge(factor)
        made.validate()
        return made

    def poison(self, num_classes: int) -> LabelFlip | Backdoor | None:
        """Return how attackers change their training samples, or None.

        Raises:
          InputError: no such option.
        """
        if self.attack not in POISONS:
            return None
        make = {self.attack: partial(POISONS[self.attack], num_classes)}
        return made_with("attack", self.attack, make, self.attack_options)

    def poisoned(
        self, dataset: Dataset, partition: Partition, ids: np.ndarray
    ) -> tuple[Dataset, Partition]:
        """Return the data after an attack on the attackers' training samples.

        Raises:
          InputError: the attack can't change these samples.
        """
        change, attackers = self.poison(dataset.num_classes), self.attackers_of(ids)
        if change is None or attackers is None:
            return dataset, partition
        target = getattr(change, "target", 0)
        allowed = f"a class in 0..{dataset.num_classes - 1}"
        require(target < dataset.num_classes, f"target of {self.attack}", target, allowed)
        return poison(dataset, partition, np.flatnonzero(np.isin(ids, attackers)).tolist(), change)

    def check_concepts(self, data: FederatedData) -> None:
        """Check the clients' data together with an attack on stored samples.

        Raises:
          InputError: clients see stored samples turned, or their classes under other labels.
        """
        changed = data.turns is not None or data.label_map is not None or data.drift is not None
        if self.attack in POISONS and changed:
            raise InputError(
                f"attack={self.attack!r} changes stored samples: it can't be combined with drift, "
                "rotated clients or clients whose labels have other meanings."
            )

    def metrics(self, dataset: Dataset, partition: Partition) -> tuple[Metric, ...]:
        """Return the attack success rate of a backdoor, a metric of samples with its trigger.

        It is the share of samples of other classes that a model assigns to the target class.
        """
        change = self.poison(dataset.num_classes)
        if not isinstance(change, Backdoor):
            return ()
        height, width = dataset.input_shape[:2]
        mask, target = change.mask(height, width), change.target
        bright = brightness(dataset, partition)

        def success(outputs: jax.Array, labels: jax.Array, valid: jax.Array) -> jax.Array:
            others = valid & (labels != target)
            hits = jnp.sum(others & (jnp.argmax(outputs, axis=-1) == target))
            return jnp.where(jnp.any(others), hits / jnp.maximum(jnp.sum(others), 1), jnp.nan)

        def triggered(x: jax.Array) -> jax.Array:
            return jnp.where(mask, jnp.asarray(bright, x.dtype), x)

        return (Metric("attack_success", success, LOWER, fraction=True, changes=triggered),)

    def notes(self, ids: np.ndarray) -> list[str]:
        """Return sentences on the attack and the rule for tables.

        Numbers that can be swept are their names in braces, see `swept_numbers.sentences`.
        """
        attackers, notes = self.attackers_of(ids), []
        if attackers is not None:
            of_uploads = "" if self.upload_attack() is None else "attack_"
            how = described(self.attack, _named_numbers(of_uploads, self.attack_options))
            be = "is" if len(attackers) == 1 else "are"
            what = f"{len(attackers)} of {len(ids)} clients {be}"
            if self.attack == NONE:
                what += f" named as attacker{'s' * (len(attackers) > 1)} without an attack:"
                notes.append(f"{what} they train as others do and are not scored")
            else:
                notes.append(f"{what} Byzantine ({how}) and {be} not scored")
        if self.aggregator != NONE:
            options = _named_numbers("aggregator_", self.aggregator_options)
            notes.append(f"aggregator {described(self.aggregator, options)}")
        return notes

    def rule(self, members: int, ids: np.ndarray) -> Aggregator | None:
        """Return the robust rule for rounds of so many members among clients `ids`, or None.

        Raises:
          InputError: no such option, rounds have too few members for its f, or the client that it
            trusts is none of the clients or an attacker.
        """
        if self.aggregator == NONE:
            return None
        made = made_with("aggregator", self.aggregator, AGGREGATORS, self.aggregator_options)
        made.validate(members)
        root, attackers = getattr(made, "root", None), self.attackers_of(ids)
        honest = ids if attackers is None else np.setdiff1d(ids, attackers)
        allowed = "the id of a client that is not an attacker"
        require(root is None or root in honest, f"root of {self.aggregator}", root, allowed)
        return with_arrays(made)


def _named_numbers(prefix: str, options: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return options with the names of `STRENGTHS` in braces for their values."""
    return {
        key: f"{{{prefix}{key}}}" if f"{prefix}{key}" in STRENGTHS else value
        for key, value in (options or {}).items()
    }


def described(name: str, options: Mapping[str, Any] | None) -> str:
    """Return a name with its options, such as "krum, f=2"."""
    return ", ".join([name, *(f"{key}={value}" for key, value in (options or {}).items())])


def made_with(what: str, name: str, known: Mapping[str, Any], options: Any) -> Any:
    """Make the attack, rule or compressor of a name with its options.

    Raises:
      InputError: no such option, or a value that is not allowed.
    """
    name = find_name(what, name, known)
    mapping = options is None or isinstance(options, Mapping)
    require(mapping, f"{what}_options", options, "a dict such as {'f': 2}")
    options = dict(options or {})
    default = known[name]()
    kinds = {one.name: type(getattr(default, one.name)) for one in fields(default)}
    for key, value in options.items():
        if key not in kinds:
            raise unknown_name(f"option of {name}", key, kinds)
        label = f"{key} of {name}"
        options[key] = convert(label, value, kinds[key])
        holds, allowed = ALLOWED.get(key, (lambda x: True, ""))
        require(holds(options[key]), label, value, allowed)
    made = known[name](**options)
    check_needs(made, f" of {name}")
    return made


def with_arrays(tree: Any) -> Any:
    """Return the tree with arrays, which programs trace, in place of Python numbers."""

    def of(x):
        if isinstance(x, bool | int):
            return jnp.asarray(x, jnp.int32)
        return jnp.asarray(x, jnp.float32) if isinstance(x, float) else x

    return jax.tree.map(of, tree)
