"""Registry of partition rules.

A rule first plans (which client gets which classes, in which shares) and then deals: the same plan
is applied to the training samples and to the official test samples, so that a client's test
distribution follows its training distribution. A client's samples are dealt as shuffled strata,
such as one per class. Hold-outs and caps take the same fraction of every stratum, to the nearest
sample, so they keep the shares of the rule.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, TypeGuard

import numpy as np

from fedjax_pfl.data.dataset import Dataset
from fedjax_pfl.data.partitions.dealing import Deal, Samples, joined
from fedjax_pfl.data.partitions.held_out import capped, hold_out, nothing_held_out
from fedjax_pfl.data.partitions.partition import Partition
from fedjax_pfl.data.partitions.partition_checks import require_room
from fedjax_pfl.utils.boundary import checked
from fedjax_pfl.utils.conversions import convert, keyword_defaults
from fedjax_pfl.utils.errors import InputError, find_name, require, require_name, require_whole
from fedjax_pfl.utils.registries import F, registering


class DealPlan(NamedTuple):
    """What a partition rule decides: how samples are dealt to clients.

    Attributes:
      deal: `deal(samples, rng)` deals any samples by the plan, see `register_rule`.
      facts: what the rule reports in a partition's `options`, beside its own options.
      label_map: [N, C] or None, see `Partition`.
      allow_overlap: whether several clients may get the same sample.
      unread: options without effect in this mode of the rule, with the mode in which they have one.
        Setting one is an error.
      names: names of the clients, or empty.
    """

    deal: Deal
    facts: dict[str, Any]
    label_map: np.ndarray | None = None
    allow_overlap: bool = False
    unread: Mapping[str, str] = MappingProxyType({})
    names: tuple[str, ...] = ()


class Rule(NamedTuple):
    """Row of `RULES`; `plan(samples, num_clients, rng, *, option=default, ...) -> DealPlan`."""

    plan: Callable[..., DealPlan]
    equal_sizes: bool
    test_split: str
    test_fraction: float
    needs_classes: bool
    natural: bool
    sees_inputs: bool = False


RULES: dict[str, Rule] = {}
_TEST_SPLITS = ("official", "pooled", "train")


@checked
def register_rule(
    name: str,
    *,
    equal_sizes: bool = False,
    test_split: str = "official",
    test_fraction: float = 0.25,
    needs_classes: bool = True,
    natural: bool = False,
    sees_inputs: bool = False,
) -> Callable[[F], F]:
    """Return a decorator that adds a partition rule to `RULES`.

    The function is `plan(samples, num_clients, rng, *, option=default, ...) -> DealPlan`; the
    defaults define the types of the rule's options. The plan's `deal(samples, rng)` is called for
    the training samples and for the official test samples. It returns for each client a list of
    shuffled arrays of pool indices, of which hold-outs and caps take the same fraction.

    Args:
      name: name of the rule.
      equal_sizes: whether all clients get the same number of samples; a cap is then met exactly.
      test_split: the meaning of "auto" if an official test split exists.
      test_fraction: the rule's default of that option.
      needs_classes: whether it deals by class, so that data sets without classes are refused.
      natural: whether the data define clients; `num_clients` may then be None, for all of them.
      sees_inputs: whether `samples.inputs` contains the samples; None otherwise.

    Raises:
      InputError: the name is another rule's, or an invalid test split or fraction.
    """
    require_name("test_split", test_split, _TEST_SPLITS)
    fits = 0 <= test_fraction < 1
    require(fits, "test_fraction", test_fraction, "a number at least 0 and below 1")

    def entry(plan: Callable[..., DealPlan]) -> Rule:
        return Rule(
            plan, equal_sizes, test_split, test_fraction, needs_classes, natural, sees_inputs
        )

    return registering("partition rule", RULES, name, entry)


COMMON_OPTIONS: dict[str, Any] = {
    "test_split": "auto",
    "test_fraction": 0.25,
    "train_samples": None,
    "test_samples": None,
}


@checked
def rule_options(rule: str) -> dict[str, Any]:
    """Return the options of a rule and their defaults: its own, then those of all rules.

    Raises:
      InputError: unknown rule.
    """
    rule = find_name("partition rule", rule, RULES)
    common = COMMON_OPTIONS | {"test_fraction": RULES[rule].test_fraction}
    return keyword_defaults(RULES[rule].plan) | common


@checked
def parse_options(
    values: Mapping[str, Any], defaults: Mapping[str, Any], kind: str
) -> dict[str, Any]:
    """Convert options to the types of their defaults; a default of None is an integer's.

    Args:
      values: text or values by name; "none" is None if that is the default.
      defaults: such as `rule_options(rule)`.
      kind: an option's name in messages.

    Raises:
      InputError: an unknown name, or a value that is not of the type.
    """
    parsed = {}
    for name, value in values.items():
        require_name(kind, name, defaults)
        value = value.strip() if isinstance(value, str) else value
        of_type = int | None if defaults[name] is None else type(defaults[name])
        parsed[name] = convert(name, value, of_type)
    return parsed


@checked
def make_partition(
    rule: str, dataset: Dataset, num_clients: int | None, seed: int, **options: Any
) -> Partition:
    """Deal a data set to clients.

    Args:
      rule: a name in `RULES`; its docstring and `rule_options` describe its options.
      dataset: the data set; indices go into its pool, training samples before test samples.
      num_clients: number of clients N; for `by_column` None takes all clients of the data.
      seed: the partition is a function of the arguments, this number included.
      **options: the rule's options, and for every rule
        test_split: "official" deals the official test samples by the same plan; "pooled" deals all
          samples together and holds out a random part of each client's for testing; "train" does
          so with only the training samples; "auto" is the rule's own choice, or "pooled" without
          official test samples.
        test_fraction: part held out for testing unless official (FedDWA's Dirichlet has 0.2).
        train_samples, test_samples: largest number per client, or exactly that number for rules of
          equal sizes; None means all.

    Returns:
      A partition of ascending lists, without overlap unless an option of the rule allows it. Its
      `options` are all resolved options, the seed, and the facts that the rule reports.

    Raises:
      InputError: an unknown rule or option, a value out of range, or too few samples.
    """
    rule = find_name("partition rule", rule, RULES)
    defaults = rule_options(rule)
    for name in options:
        require_name(f"option of partition rule {rule!r}", name, defaults)
    if RULES[rule].needs_classes and not dataset.has_classes:
        others = [name for name, one in RULES.items() if not one.needs_classes]
        raise InputError(
            f"Partition rule {rule!r} deals samples by class, and those of data set "
            f"{dataset.name!r}, for the task {dataset.task}, have none: use "
            f"{' or '.join(map(repr, others))}, or a partition of your own."
        )
    for name, value in options.items():
        single = value is None or isinstance(value, bool | int | float | str)
        require(single, name, type(value).__name__, "a number, text, True, False or None")
        if isinstance(defaults[name], float) and is_number(value):
            options[name] = float(value)
    resolved = defaults | options
    common = {name: resolved[name] for name in COMMON_OPTIONS}
    own = {name: value for name, value in resolved.items() if name not in COMMON_OPTIONS}
    if num_clients is not None or not RULES[rule].natural:
        num_clients = require_whole("num_clients", num_clients, 1)
    seed = require_whole("seed", seed, 0, bits=63)
    fraction = common["test_fraction"]
    in_range = is_number(fraction) and 0 <= fraction < 1
    require(in_range, "test_fraction", fraction, "a number at least 0 and below 1")
    for name in ("train_samples", "test_samples"):
        if common[name] is not None:
            common[name] = require_whole(name, common[name], 1)
    common["test_split"] = _test_split(common["test_split"], RULES[rule], dataset)
    official = common["test_split"] == "official"
    if official:
        check_read(options, {"test_fraction": "test_split 'pooled' or 'train'"})
        common["test_fraction"] = None

    labels = dataset.labels
    inputs = dataset.pool()[0] if RULES[rule].sees_inputs else None
    first_test = len(labels) if common["test_split"] == "pooled" else dataset.num_train
    what = "samples" if common["test_split"] == "pooled" else "training samples"
    train = _samples(dataset, labels, inputs, 0, first_test, what)
    test = _samples(dataset, labels, inputs, first_test, len(labels), "test samples")
    shared = () if RULES[rule].natural else (train, test) if official else (train,)
    for samples in shared:
        if num_clients is not None and len(samples.idx) < num_clients:
            raise InputError(
                f"{num_clients} clients can't share {len(samples.idx)} {samples.what}: "
                f"at most {len(samples.idx)} clients can."
            )
    # One stream per purpose, so that a cap or another test split doesn't change the plan.
    plan_rng, train_rng, test_rng = (np.random.default_rng([seed, purpose]) for purpose in range(3))
    require_room(num_clients or 0, dataset.num_classes)
    plan = RULES[rule].plan(train, num_clients, plan_rng, **own)
    require_room(len(plan.names), dataset.num_classes)
    check_read(options, plan.unread)
    dealt = plan.deal(train, train_rng)
    if official:
        tested = plan.deal(test, test_rng)
    else:
        tested, dealt = hold_out(dealt, fraction)
        if fraction > 0 and not any(len(stratum) for strata in tested for stratum in strata):
            raise nothing_held_out(fraction, max(len(joined(strata)) for strata in dealt))
    partition = Partition.from_lists(
        capped(dealt, common["train_samples"], RULES[rule].equal_sizes, "train_samples"),
        capped(tested, common["test_samples"], RULES[rule].equal_sizes, "test_samples"),
        rule=rule,
        options=own | common | {"seed": seed} | plan.facts,
        label_map=plan.label_map,
        allow_overlap=plan.allow_overlap,
        names=plan.names,
    )
    partition.validate(len(labels), dataset.num_classes, labels)
    return partition


def check_read(options: Mapping[str, Any], unread: Mapping[str, str]) -> None:
    """Raise `InputError` if an option is set (not None) that has no effect.

    Args:
      options: options by name.
      unread: by option, the setting with which it has an effect.
    """
    for name, needed in unread.items():
        if options.get(name) is not None:
            raise InputError(
                f"{name} is read with {needed} only: leave it out, got {options[name]!r}."
            )


def _samples(dataset: Dataset, labels, inputs, start: int, stop: int, what: str) -> Samples:
    columns = {name: values[start:stop] for name, values in dataset.columns.items()}
    idx = np.arange(start, stop)
    seen = None if inputs is None else inputs[start:stop]
    return Samples(idx, labels[start:stop], dataset.num_classes, what, columns, seen)


def is_number(value: object) -> TypeGuard[int | float]:
    """Return whether it is a float, or an integer that a float can represent; not a bool."""
    in_range = not isinstance(value, int) or abs(value) < 2**1023
    return isinstance(value, int | float) and not isinstance(value, bool) and in_range


def _test_split(name: str, rule: Rule, dataset: Dataset) -> str:
    name = find_name("test_split", name, ("auto", *_TEST_SPLITS))
    if name == "official" and dataset.num_test == 0:
        raise InputError(
            f"Data set {dataset.name!r} has no official test samples: test_split must be 'pooled' "
            "or 'auto', got 'official'."
        )
    if name == "auto":
        return "pooled" if dataset.num_test == 0 else rule.test_split
    return name
