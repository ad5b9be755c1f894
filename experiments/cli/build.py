"""From flags to a checked experiment: nothing is compiled or written here."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import absl.flags
import jax

import fedjax_pfl as pfl
from fedjax_pfl.data.files import as_path
from fedjax_pfl.data.whole_files import check_name
from fedjax_pfl.execution import processes
from fedjax_pfl.results.summary import check_pools
from fedjax_pfl.utils.conversions import decimal
from fedjax_pfl.utils.errors import shown

from ..outputs import trackers
from . import devices, flags, identity, resume
from .algorithms import (
    common_training,
    own_training,
    parse_algorithms,
    training_options,
    words,
)
from .data_flags import load_dataset, make_partition, num_clients
from .flagfiles import value_of
from .growth import EVERY_WAY
from .new_clients import NewClients, split_new_clients
from .pairs import parse_pairs


@dataclass(frozen=True)
class Experiment:
    """A checked command line: everything is built, nothing is compiled or written yet.

    `training` holds algorithms' own options of local training, see `own_training`.
    """

    args: absl.flags.FlagValues
    algorithms: dict[str, pfl.Algorithm]
    dataset: pfl.Dataset
    partition: pfl.Partition
    federation: pfl.Federation
    seeds: tuple[int, ...]
    matrix_rounds: list[int] | None
    adapt: pfl.Adaptation | None
    score_clients: list[int] | None
    output: Path
    identity: dict[str, Any]
    training: dict[str, dict[str, Any]]
    new_clients: NewClients | None = None

    def federation_of(self, algorithm: str) -> pfl.Federation:
        """The federation of an algorithm: with its own local training, if any."""
        own = self.training[algorithm]
        return self.federation.with_training(**own) if own else self.federation


@dataclass(frozen=True)
class Material:
    """The material of a run, and its identity (`identity.describe`)."""

    algorithms: dict[str, pfl.Algorithm]
    dataset: pfl.Dataset
    partition: pfl.Partition
    identity: dict[str, Any]
    training: dict[str, dict[str, Any]]


def check_flags(args: absl.flags.FlagValues) -> None:
    """Raises `InputError` for errors in the flags that show before data are loaded."""
    for name in parse_algorithms(args.algorithms, value_of(args, "set")):
        check_name("Algorithm", name)
    own_training(args.algorithms, value_of(args, "set"), common_training(args))
    if args.seed + args.num_seeds > 2**31:
        raise pfl.InputError(f"--seed must be at most {2**31 - args.num_seeds}, got {args.seed}.")
    parse_rounds(args.matrix_rounds, args.rounds)
    parse_adaptation(args)
    parse_clients(args.score_clients)
    parse_stragglers(args.stragglers)
    for name, choices in flags.CHOICES.items():
        if value_of(args, name) not in choices:
            raise pfl.core.unknown_name(name, value_of(args, name), choices)
    trackers.chosen(args)  # their packages are there


def material(args: absl.flags.FlagValues, dataset: pfl.Dataset | None = None) -> Material:
    """Makes the algorithms, loads the data set unless it is given, and deals it.

    Raises:
      pfl.InputError: whatever of the flags for these can't be.
    """
    check_flags(args)
    set_precision(args.dtype)
    algorithms = parse_algorithms(args.algorithms, value_of(args, "set"))
    training = own_training(args.algorithms, value_of(args, "set"), common_training(args))
    options = parse_pairs(args, "model_option")
    dataset = load_dataset(args) if dataset is None else dataset
    partition = make_partition(args, dataset)
    found = identity.describe(args, algorithms, training, dataset, partition, options)
    return Material(algorithms, dataset, partition, found, training)


_switched: list[str] = []  # settings of JAX that `set_precision` has switched on


def set_precision(dtype: str) -> None:
    """Gives JAX 64-bit types for float64, and takes them back for a later run in float32.

    A process that began with 64-bit types keeps them.
    """
    if dtype == "float64" and not jax.config.read("jax_enable_x64"):
        jax.config.update("jax_enable_x64", True)
        _switched.append("jax_enable_x64")
    elif dtype != "float64" and _switched:
        jax.config.update(_switched.pop(), False)


def prepare(
    args: absl.flags.FlagValues,
    output: Path | None = None,
    made: Material | None = None,
    options: Mapping[str, Any] | None = None,
    runs: int | None = None,
) -> Experiment:
    """Checks and builds everything.

    Args:
      args: the flags.
      output: folder to write to, checked already; by default that of the flags.
      made: the flags' `material`, if it was made already.
      options: of `pfl.federate`, "devices" among them, in place of the flags'; for devices that are
        not this process's.
      runs: how many one program has, seeds times settings; by default the seeds.

    Raises:
      pfl.InputError: whatever of the flags can't be.
    """
    check_flags(args)  # before a device is started
    matrix_rounds = parse_rounds(args.matrix_rounds, args.rounds)
    adapt = parse_adaptation(args)
    score_clients = parse_clients(args.score_clients)
    made = material(args) if made is None else made
    if options is None:
        count = num_clients(args) or made.partition.num_clients
        count = devices.prepare(args.devices, count, value_of(args, "mesh"))
        options = {"devices": count}
    algorithms, dataset, partition = made.algorithms, made.dataset, made.partition
    output = output_folder(args, made.identity) if output is None else output
    set_precision(args.dtype)
    options = federation_options(args) | dict(options)
    federation = pfl.federate(dataset, partition, args.model, **options)
    federation = federation.for_runs(args.num_seeds if runs is None else runs)
    check_pools(args.headline, federation.measures[0])
    federation, new_clients = split_new_clients(args, federation)
    if processes.several():  # each keeps its own clients' samples
        federation = pfl.engine.spread(federation)
        dataset = dataset.without_samples()
        if new_clients is not None:
            spread = pfl.engine.spread(new_clients.federation)
            new_clients = replace(new_clients, federation=spread)
    seeds = tuple(range(args.seed, args.seed + args.num_seeds))
    experiment = Experiment(
        args,
        algorithms,
        dataset,
        partition,
        federation,
        seeds,
        matrix_rounds,
        adapt,
        score_clients,
        output,
        made.identity,
        made.training,
        new_clients,
    )
    for name, algorithm in algorithms.items():
        more = {"adapt": adapt, "score_clients": score_clients}
        try:
            own = experiment.federation_of(name)
            simulation = pfl.Simulation(algorithm, own, **more)
            simulation.check(args.rounds, patience=value_of(args, "patience"))
        except pfl.InputError as error:
            given = words(name, experiment.training[name])
            if not given:
                raise
            raise pfl.InputError(f"With {' '.join(given)}: {error}") from None
    return experiment


def federation_options(args: absl.flags.FlagValues) -> dict[str, Any]:
    """The options of `pfl.federate` from the flags, by name.

    Raises:
      pfl.InputError: a word that is no valid value.
    """
    known = [name for group in pfl.options.GROUPS for name in pfl.options.declared(group)]
    return {name: value_of(args, name) for name in known if name in args} | {
        "model_options": parse_pairs(args, "model_option"),
        "stragglers": parse_stragglers(args.stragglers),
        "initial_model": args.init_from,
        **training_options(args),
    }


def parse_rounds(words: list[str] | None, rounds: int) -> list[int] | None:
    """Numbers of rounds, each in 1..rounds."""
    if words is None:
        return None
    numbers = [decimal(word) or 0 for word in words]
    for word, number in zip(words, numbers, strict=True):
        if not 1 <= number <= rounds:
            raise pfl.InputError(
                f"--matrix_rounds must be rounds in 1..{rounds}, got {shown(word)}."
            )
    return sorted(set(numbers))


def parse_clients(words: list[str] | None) -> list[int] | None:
    """Numbers of clients."""
    if words is None:
        return None
    clients = []
    for word in words:
        client = decimal(word)
        if client is None:
            raise pfl.InputError(f"--score_clients must be clients such as 0,3, got {shown(word)}.")
        clients.append(client)
    return clients


def parse_stragglers(words: list[str]) -> dict[int, int]:
    """Delays by client, of words such as "3:2"."""
    delays = {}
    for word in words:
        client, colon, delay = (part.strip() for part in word.partition(":"))
        if not colon or decimal(client) is None or decimal(delay) is None:
            raise pfl.InputError(
                "--stragglers must read CLIENT:DELAY,..., whole numbers below 2^31 such as "
                f"0:1,3:2, got {shown(word)}."
            )
        if decimal(client) in delays:
            raise pfl.InputError(f"--stragglers names client {client} twice.")
        delays[decimal(client)] = decimal(delay)
    return delays


def parse_adaptation(args: absl.flags.FlagValues) -> pfl.Adaptation | None:
    """Local steps before scoring, or None where they are off."""
    epochs, steps = args.adapt_epochs, args.adapt_steps
    declared = pfl.options.declared(pfl.Adaptation)
    known = [f"adapt_{name}" for name, option in declared.items() if option.kind]
    amount = ("adapt_epochs", "adapt_steps")
    how = {name: value_of(args, name) for name in known if name not in amount}
    given = {name.removeprefix("adapt_"): value for name, value in how.items()}
    adapt = pfl.Adaptation(epochs=epochs, steps=steps or None, **given)
    adapt.validate()
    if epochs and steps:
        raise pfl.InputError("Give one of --adapt_epochs and --adapt_steps, not both.")
    if epochs or steps:
        return adapt
    useless = [name for name in how if args[name].present]
    if useless:
        raise pfl.InputError(f"--{useless[0]} needs --adapt_epochs or --adapt_steps.")
    return None


def output_folder(
    args: absl.flags.FlagValues, more: Mapping[str, Any], ways: Collection[str] = EVERY_WAY
) -> Path:
    """The folder to write to: new, or that of the same run.

    Args:
      more: see `resume.configuration`.
      ways: in which the run may be larger than the folder's, see `growth`.
    """
    if args.output_dir is None:
        output = resume.default_folder(args, **more)
    elif not args.output_dir.strip():
        raise pfl.InputError("--output_dir must be the name of a folder, got ''.")
    else:
        output = as_path("--output_dir", args.output_dir)
    resume.check_folder(output, args, ways, **more)
    return output
