"""The axes of a sweep, and the queue of its programs: what is traced is inside one of them."""

import hashlib
import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby, starmap
from typing import Any

import numpy as np

import fedjax_pfl as pfl
from fedjax_pfl.utils.conversions import convert
from fedjax_pfl.utils.errors import cut, unknown_hyperparameter

from ..cli import flags
from ..cli.algorithms import OWN, setting_of
from ..cli.config import ExperimentConfig
from ..cli.parsing import name_and_value

# What varies inside a program.
RATES = (*pfl.options.RATES, "dp_noise", "dp_epsilon", *pfl.options.STRENGTHS)


def _read(value: str) -> float | str:
    """Normalize a value of a grid for comparison: 0.1 and 0.10 are equal."""
    try:
        return float(value)
    except ValueError:
        return value


def parse_grid(words: Sequence[str]) -> dict[str, list[str]]:
    """Parse values by name from words such as "feddwa.top_k=1,3,5"."""
    grid: dict[str, list[str]] = {}
    for word in words:
        name, text = name_and_value("grid", setting_of(word))
        values = [value.strip() for value in text.split(",")]
        if name in grid:
            raise pfl.InputError(f"--grid gives {name} twice.")
        if len(set(map(_read, values))) < len(values) or not all(values):
            raise pfl.InputError(f"--grid={cut(word, 100)} must list different values.")
        grid[name] = values
    if not grid:
        raise pfl.InputError("Give values to try, such as --grid=learning_rate=0.03,0.1.")
    return grid


def traced(name: str, algorithms: Mapping[str, pfl.Algorithm]) -> bool:
    """Return whether a name of the grid varies inside the program.

    Raises:
      InputError: neither a hyperparameter of an algorithm here nor a flag.
    """
    if name in RATES:
        return True
    algorithm, dot, key = name.partition(".")
    if not dot:
        known = flags.parse(["sweep"]).by_group()
        allowed = [n for g in ("data", "rule", "training", "uploads") for n in known[g]]
        owners = [m for m, one in algorithms.items() if name in vars(one)]
        if name not in allowed and owners:
            raise pfl.InputError(
                f"{name!r} in --grid is a hyperparameter: write "
                f"{' or '.join(f'{owner}.{name}' for owner in owners)}."
            )
        if name not in allowed and any(name in group for group in known.values()):
            raise pfl.InputError(
                f"--grid can't vary --{name}: it takes flags on data, the partition rule, training "
                "and uploads."
            )
        if name not in allowed:
            raise pfl.core.unknown_name("name in --grid", name, [*allowed, *pfl.options.STRENGTHS])
        return False
    if algorithm not in algorithms:
        algorithm = pfl.core.algorithm_name(algorithm, algorithms, "algorithm in --grid")
    names = {*vars(algorithms[algorithm]), *OWN}
    if key not in names:
        raise unknown_hyperparameter(algorithm, key, names, " in --grid")
    return key in pfl.engine.sweepable(algorithms[algorithm])


def changing_data(grid: Collection[str]) -> list[str]:
    """Return the names of the grid whose values change the data."""
    known = flags.parse(["sweep"]).by_group()
    names = {*known["data"], *known["rule"], *pfl.options.declared(pfl.options.DriftOptions)}
    return [name for name in grid if name in names - {"input_scaling"}]


def is_of_training(name: str) -> bool:
    """Return whether a name of the grid is a hyperparameter, or an option of model or training."""
    groups = pfl.options.ParticipationOptions, pfl.options.DriftOptions
    others = {option for group in groups for option in pfl.options.declared(group)}
    return "." in name or name in flags.parse(["sweep"]).by_group()["training"].keys() - others


def setting_words(setting: Mapping[str, str]) -> list[str]:
    """Return the flags of values by name of the grid."""

    def word(name: str, value: str) -> str:
        if name in pfl.options.STRENGTHS:
            name, _, option = name.partition("_")
            return f"--{name}_option={option}={value}"
        return f"--set={name}={value}" if "." in name else f"--{name}={value}"

    return [word(name, value) for name, value in setting.items()]


@dataclass(frozen=True)
class Program:
    """One program: an algorithm with structural settings, and the traced ones inside it.

    Attributes:
      config: its flags; content: of its data when the sweep began; None until it is checked.
    """

    algorithm: str
    fixed: dict[str, str]
    inside: list[dict[str, str]]
    config: Any = None
    content: dict[str, Any] = field(default_factory=dict)

    def words(self) -> list[str]:
        """Return the flags of its program."""
        return [f"--algorithms={self.algorithm}", *setting_words(self.fixed)]

    def parsed(
        self, argv: Sequence[str], define_more: Callable[..., None] | None = None
    ) -> ExperimentConfig:
        """Return the configuration of its program; `define_more` as of `parse`.

        Raises:
          InputError, absl.flags.Error: see `flags.parse`.
        """
        config = flags.parse([*argv, *self.words()], define_more)
        own = [word for word in config.set if word.partition(".")[0].strip() == self.algorithm]
        return config.replace(set=own)  # without what --set gives other algorithms

    @property
    def folder(self) -> str:
        """A name that no other algorithm or setting has, on any file system.

        The words themselves where they are unambiguous: names of settings have no "-" and no "=",
        and the values have no "=" and no capitals. Otherwise the name ends in "~" and a digest.
        """
        name = "-".join([self.algorithm, *(f"{k}={v}" for k, v in self.fixed.items())])
        values = "".join(self.fixed.values())
        plain = re.fullmatch(r"[a-z0-9][a-z0-9_.+-]*", self.algorithm)
        plain = plain and re.fullmatch(r"[a-z0-9_.]*", "".join(self.fixed))
        if plain and re.fullmatch(r"[a-z0-9_.+-]*", values) and len(name) <= 100:
            return name
        exact = json.dumps([self.algorithm, sorted(self.fixed.items())])
        digest = hashlib.sha256(exact.encode()).hexdigest()[:16]
        return f"{re.sub(r'[^a-z0-9_.+=-]', '_', name.lower().lstrip('.'))[:80]}~{digest}"

    @property
    def settings(self) -> list[dict[str, Any]]:
        """The settings that `simulate` sweeps inside the program."""

        def read(name: str, word: str) -> tuple[str, Any]:
            key = name.rpartition(".")[2]
            return key, convert(f"--grid={name}", word, float) if key in RATES else word

        return [dict(starmap(read, one.items())) for one in self.inside]


def programs(
    algorithms: Mapping[str, pfl.Algorithm],
    grid: Mapping[str, Sequence[str]],
    set_names: Collection[str] = (),
) -> list[Program]:
    """Return the queue of programs: structural settings times algorithms.

    An algorithm's own value, in the grid or by --set (`set_names`, names such as
    "feddwa.learning_rate"), replaces the flag of that name.

    Raises:
      InputError: the grid and --set both have one algorithm's option of local training.
    """
    twice = [name for name in grid if name in set_names and name.partition(".")[2] in OWN]
    if twice:
        raise pfl.InputError(f"Both --grid and --set give {twice[0]}: leave one of them out.")
    inside = {name: traced(name, algorithms) for name in grid}
    queue = []
    for algorithm in algorithms:
        mine = [n for n in grid if "." not in n or n.partition(".")[0] == algorithm]
        mine = [n for n in mine if not {f"{algorithm}.{n}"} & {*grid, *set_names}]
        structural = {name: grid[name] for name in mine if not inside[name]}
        own = pfl.engine.combinations({name: grid[name] for name in mine if inside[name]})
        for fixed in pfl.engine.combinations(structural):
            queue.append(Program(algorithm, fixed, own))
    return queue


def drawn(queue: Sequence[Program], budget: int | None) -> list[Program]:
    """Return the queue with `budget` settings of each algorithm, drawn at random; None for all.

    The draw depends on the number of settings only, so that a sweep finds its programs again.
    """
    result = []
    for _, group in groupby(queue, key=lambda one: one.algorithm):
        mine = list(group)
        places = [(program, one) for program in mine for one in program.inside]
        count = len(places) if budget is None else min(budget, len(places))
        chosen = np.random.default_rng(0).permutation(len(places))[:count]
        kept = [places[k] for k in sorted(chosen)]
        for program in mine:
            inside = [one for owner, one in kept if owner is program]
            result += [replace(program, inside=inside)] if inside else []
    return result
