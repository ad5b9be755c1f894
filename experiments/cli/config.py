"""The configuration of a run: its flags, parsed once, and the objects that they describe."""

import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import jax

import fedjax_pfl as pfl
from fedjax_pfl.data.atomic_files import check_name
from fedjax_pfl.results.accuracy_conventions import HEADLINES
from fedjax_pfl.utils.conversions import decimal
from fedjax_pfl.utils.errors import find_name, shown

from ..outputs import trackers
from .algorithms import own_training, parse_algorithms
from .parsing import name_and_value, parse_pairs

MOMENTS = ("received", "both")  # at which personalized models are scored

GROUPS = ("comparison", "data", "rule", "training", "uploads", "run")  # flags that make a run
# Flags of which runs allow only some values.
CHOICES = {"dtype": ("float32", "float64"), "headline": tuple(HEADLINES)}
# Flags that have another name than their option.
RENAMED = {"initial_model": "init_from", "names": "init_name", "partial": "init_partial"}


def form_of(option: pfl.options.Option) -> str:
    """Return how a flag gives an option: "word", "pairs" (NAME=VALUE, repeated), "rounds"
    (CLIENT:NUMBER) or "list"; "" where no words can.
    """
    if option.kind is not None:
        return "word"
    kind, of = typing.get_origin(option.kinds[0]) or object, typing.get_args(option.kinds[0])
    if issubclass(kind, Mapping):
        return "rounds" if of[0] is int else "pairs"
    return "list" if issubclass(kind, Sequence) else ""


def flag_of(option: pfl.options.Option) -> str:
    """Return the name of an option's flag."""
    name = RENAMED.get(option.name, option.name)
    return name.removesuffix("s") if form_of(option) == "pairs" else name


class Setting(NamedTuple):
    """One flag.

    Attributes:
      value, default: of the type that the flag's parser returns.
      present: whether the flag was given, on the command line or in a flagfile.
      group: the heading of --help that it is listed under; "" for a library's flag.
    """

    value: Any
    default: Any
    present: bool
    group: str


@dataclass(frozen=True)
class ExperimentConfig:
    """The flags of `experiments.run` by name; `config.rounds` is the value of --rounds.

    The objects that flags describe in words are properties, made when they are first asked for.
    """

    settings: Mapping[str, Setting]

    def __getattr__(self, name: str) -> Any:
        try:
            return self.__dict__["settings"][name].value
        except KeyError:
            raise AttributeError(f"A run has no flag {name!r}.") from None

    def __getitem__(self, name: str) -> Setting:
        return self.settings[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.settings)

    def __contains__(self, name: object) -> bool:
        return name in self.settings

    def replace(self, **values: Any) -> "ExperimentConfig":
        """Return a copy with other values of some flags."""
        changed = {
            name: self[name]._replace(value=value, present=True) for name, value in values.items()
        }
        return ExperimentConfig({**self.settings, **changed})

    def by_group(self) -> dict[str, dict[str, Any]]:
        """Return values as {group: {flag: value}}, without help flags and libraries' flags."""
        return {
            group: {name: one.value for name, one in self.settings.items() if one.group == group}
            for group in GROUPS
        }

    @cached_property
    def seeds(self) -> tuple[int, ...]:
        """The seeds of the repetitions."""
        return tuple(range(self.seed, self.seed + self.num_seeds))

    @cached_property
    def instances(self) -> dict[str, pfl.Algorithm]:
        """The algorithms by name, with the hyperparameters of --set."""
        return parse_algorithms(self.algorithms, self.set)

    @cached_property
    def training_of(self) -> dict[str, dict[str, Any]]:
        """Options of local training in which each algorithm differs from the flags."""
        common = pfl.LocalTraining(**self._options_of(pfl.LocalTraining))  # `federate` checks it
        return own_training(self.algorithms, self.set, common)

    @cached_property
    def model_options(self) -> dict[str, Any]:
        """Options of the network."""
        return parse_pairs(self, "model_option")

    def _options_of(self, *groups: type) -> dict[str, Any]:
        """Return the options of groups by name, as far as there are flags for them."""
        options = [one for group in groups for one in pfl.options.declared(group).values()]
        values = {one.name: self._given(one) for one in options if flag_of(one) in self}
        if self.wdr_weight and pfl.LocalTraining in groups:
            values["extra_loss"] = pfl.training.WeightDistribution(self.wdr_weight)
        return values

    def _given(self, option: pfl.options.Option) -> Any:
        """Return the value of an option's flag in the option's form."""
        flag, form = flag_of(option), form_of(option)
        if form == "rounds":
            return self._rounds_of_clients(flag, "DELAY" if flag == "stragglers" else "ROUND")
        if flag == "init_name":  # layers may be called "1"
            return dict(name_and_value(flag, word) for word in self.init_name) or None
        if form == "pairs":
            return parse_pairs(self, flag)
        return self[flag].value or None if form == "list" else self[flag].value

    @cached_property
    def recorded_rounds(self) -> list[int] | None:
        """Rounds whose mixing matrices are recorded; None for the first, middle and last one."""
        if self.matrix_rounds is None:
            return None
        numbers = [decimal(word) or 0 for word in self.matrix_rounds]
        for word, number in zip(self.matrix_rounds, numbers, strict=True):
            if not 1 <= number <= self.rounds:
                raise pfl.InputError(
                    f"--matrix_rounds must be rounds in 1..{self.rounds}, got {shown(word)}."
                )
        return sorted(set(numbers))

    @cached_property
    def scored_clients(self) -> list[int] | None:
        """Numbers of the clients whose models are scored; None for all."""
        numbers = [decimal(word) for word in self.score_clients or ()]
        for word, number in zip(self.score_clients or (), numbers, strict=True):
            if number is None:
                raise pfl.InputError(
                    f"--score_clients must be clients such as 0,3, got {shown(word)}."
                )
        return None if self.score_clients is None else [number or 0 for number in numbers]

    def _rounds_of_clients(self, flag: str, what: str) -> dict[int, int]:
        """Return the numbers of rounds by client of a flag such as --stragglers."""
        rounds = {}
        for word in self[flag].value:
            client, colon, count = (decimal(p) if p != ":" else p for p in word.partition(":"))
            if colon != ":" or client is None or count is None:
                raise pfl.InputError(
                    f"--{flag} must read CLIENT:{what},..., whole numbers below 2^31 such as "
                    f"0:1,3:2, got {shown(word)}."
                )
            if client in rounds:
                raise pfl.InputError(f"--{flag} names client {client} twice.")
            rounds[client] = count
        return rounds

    @property
    def both_moments(self) -> bool:
        """Whether copies after one further local training are scored, too."""
        return find_name("moments", self.moments, MOMENTS) == "both"

    @cached_property
    def adaptation(self) -> pfl.Adaptation | None:
        """Local steps before scoring, or None without them."""
        epochs, steps = self.adapt_epochs, self.adapt_steps
        declared = pfl.options.declared(pfl.Adaptation)
        others = [name for name, option in declared.items()
                  if option.kind and name not in ("epochs", "steps")]  # fmt: skip
        options = {name: self[f"adapt_{name}"].value for name in others}
        both = self.both_moments
        if epochs and steps:
            raise pfl.InputError("Give one of --adapt_epochs and --adapt_steps, not both.")
        length = {"steps": steps or None, "epochs": epochs or None}
        adapt = pfl.Adaptation(**length, **options).checked()
        if both and not adapt.as_in_a_round:
            raise pfl.InputError(
                "--moments=both trains copies as a round does: leave out --adapt_epochs, "
                "--adapt_steps and other flags of the copies' training."
            )
        if epochs or steps or both:
            return adapt
        useless = [name for name in others if self[f"adapt_{name}"].present]
        if useless:
            raise pfl.InputError(f"--adapt_{useless[0]} needs --adapt_epochs or --adapt_steps.")
        return None

    def federation_options(self) -> dict[str, Any]:
        """Return the options of `pfl.federate` by name.

        Raises:
          InputError: a word that is not a valid value.
        """
        return self._options_of(*pfl.options.GROUPS)

    def check(self) -> None:
        """Raise `InputError` for errors in the flags that show before data are loaded."""
        for name in self.instances:
            check_name("Algorithm", name)
        if self.seed + self.num_seeds > 2**31:
            raise pfl.InputError(
                f"--seed must be at most {2**31 - self.num_seeds}, got {self.seed}."
            )
        for name in ("init_name", "init_partial"):
            if self[name].value and self.init_from is None:
                raise pfl.InputError(f"--{name} needs --init_from, the file that it is about.")
        _ = self.training_of, self.recorded_rounds, self.adaptation, self.scored_clients
        _ = self.federation_options()
        for name, choices in CHOICES.items():
            if self[name].value not in choices:
                raise pfl.core.unknown_name(name, self[name].value, choices)
        trackers.from_flags(self)  # their packages are there


_switched: list[str] = []  # settings of JAX that `set_precision` has switched on


def set_precision(dtype: str) -> None:
    """Enable JAX's 64-bit types for float64 and disable them for float32.

    A process that began with 64-bit types keeps them.
    """
    if dtype == "float64" and not jax.config.read("jax_enable_x64"):
        jax.config.update("jax_enable_x64", True)
        _switched.append("jax_enable_x64")
    elif dtype != "float64" and _switched:
        jax.config.update(_switched.pop(), False)
