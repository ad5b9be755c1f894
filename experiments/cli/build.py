"""Construction of data and federation from a configuration, without compiling or writing."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import fedjax_pfl as pfl
from fedjax_pfl.execution import processes
from fedjax_pfl.results.accuracy_conventions import check_pools

from . import data_flags, devices, identity
from .algorithms import setting_flags
from .config import ExperimentConfig, set_precision
from .new_clients import NewClients, split_new_clients


@dataclass(frozen=True)
class Inputs:
    """A checked configuration with its data.

    Attributes:
      content: entries of the run's identity that replace flags or add to them.
      identity: of the run, see `identity.run_identity`.
    """

    config: ExperimentConfig
    dataset: pfl.Dataset
    partition: pfl.Partition
    content: dict[str, Any]
    identity: dict[str, Any]


class Folder(NamedTuple):
    """The folder of a run as its command found it, see `run_folder.inspect`.

    Attributes:
      output: its path.
      pending: the algorithms to simulate.
      blocks: how many seeds are simulated together, see `algorithm_folders.seed_blocks`.
      finished: whether it has all results of the command.
    """

    output: str = ""
    pending: Sequence[str] = ()
    blocks: Sequence[int] = ()
    finished: bool = False


@dataclass(frozen=True)
class Experiment(Inputs):
    """A checked run before anything is compiled or written.

    Attributes:
      folder: where it is written.
    """

    folder: Folder
    federation: pfl.Federation
    new_clients: NewClients | None = None

    @property
    def output(self) -> Path:
        """The folder to write to."""
        return Path(self.folder.output)

    def federation_of(self, algorithm: str) -> pfl.Federation:
        """Return the federation of an algorithm: with its own local training, if any."""
        own = self.config.training_of[algorithm]
        return self.federation.with_training(**own) if own else self.federation

    def simulation(
        self, algorithm: str, seeds: Sequence[int] | None = None, **options: Any
    ) -> pfl.Simulation:
        """Return the simulation of an algorithm, by default with all seeds."""
        return pfl.Simulation(
            self.config.instances[algorithm],
            self.federation_of(algorithm),
            **({} if seeds is None else {"seeds": seeds}),
            eval_every=self.config.eval_every,
            score_clients=self.config.scored_clients,
            **options,
        )


def load_inputs(config: ExperimentConfig, shared: bool = False) -> Inputs:
    """Check a configuration, load its data set and partition it.

    Args:
      shared: whether the next run of the same data set may have it without loading.

    Raises:
      InputError: an invalid flag or data set.
    """
    config.check()
    set_precision(config.dtype)
    dataset = data_flags.load_dataset(config, shared)
    partition = data_flags.make_partition(config, dataset)
    content = identity.content(config, dataset, partition)
    return Inputs(config, dataset, partition, content, identity.run_identity(config, content))


def prepare(
    inputs: Inputs,
    folder: Folder = Folder(),  # noqa: B008 - immutable
    options: Mapping[str, Any] | None = None,
    runs: int | None = None,
) -> Experiment:
    """Build the federation and check it for every algorithm.

    Args:
      folder: where the run is written.
      options: of `pfl.federate`, "devices" among them, in place of the flags'; for devices that are
        not this process's.
      runs: how many one program has, seeds times settings; by default the seeds.

    Raises:
      InputError: an invalid flag.
    """
    config, dataset, partition = inputs.config, inputs.dataset, inputs.partition
    if options is None:
        count = data_flags.num_clients(config) or partition.num_clients
        options = {"devices": devices.prepare(config.devices, count, config.mesh)}
    set_precision(config.dtype)
    options = config.federation_options() | dict(options)
    federation = pfl.federate(dataset, partition, config.model, **options)
    if runs is None:  # seeds of several commands are simulated apart
        runs = math.gcd(*folder.blocks) or config.num_seeds
    federation = federation.with_devices(federation.execution.shared(runs))
    check_pools(config.headline, federation.measures[0])
    federation, new_clients = split_new_clients(config, federation)
    if processes.is_distributed():  # each keeps its own clients' samples
        federation = pfl.engine.distribute(federation)
        inputs = replace(inputs, dataset=dataset.without_samples())
        if new_clients is not None:
            spread = pfl.engine.distribute(new_clients.federation)
            new_clients = replace(new_clients, federation=spread)
    made = {"folder": folder, "federation": federation, "new_clients": new_clients}
    experiment = Experiment(**vars(inputs), **made)
    for name in config.instances:
        try:
            simulation = experiment.simulation(name, adapt=config.adaptation)
            simulation.check(config.rounds, patience=config.patience)
        except pfl.InputError as error:
            options = config.training_of[name]
            own = setting_flags(name, options)
            if not any(key in str(error) or key.replace("_", " ") in str(error) for key in options):
                raise
            raise pfl.InputError(f"With {' '.join(own)}: {error}") from None
    return experiment
