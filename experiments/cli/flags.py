"""The flags of `experiments.run`, in groups that `--help` prints one after the other."""

import re
from collections.abc import Callable, Collection, Sequence
from functools import cache
from typing import Any

from absl import flags

import fedjax_pfl as pfl
from fedjax_pfl.results.accuracy_conventions import DEFAULT, HEADLINES
from fedjax_pfl.utils import aliases, name_matching
from fedjax_pfl.utils.conversions import keyword_defaults

from . import console, data_flags, flag_roles, plugins
from .algorithms import canonical_names, setting_of
from .config import CHOICES, GROUPS, ExperimentConfig, Setting, flag_of, form_of
from .flag_groups import Group
from .parsing import FlagValues, last_of_each, parse_words, value_of
from .start import called

# Defaults of the library's functions that runs call.
SIMULATED, SCORED = keyword_defaults(pfl.simulate), keyword_defaults(pfl.score_new_clients)


def _define_options(group: Group, declared_in: type, prefix: str = "", **defaults: Any) -> None:
    """Define flags for the options of a group, those that words can give.

    Args:
      declared_in: the group.
      prefix: of the flags' names.
      **defaults: instead of the library's.
    """
    for option in pfl.options.declared(declared_in).values():
        name, form = prefix + flag_of(option), form_of(option)
        default = defaults.get(option.name, option.default)
        meaning = re.split("[,;] or in Python", option.text())[0]
        meaning = meaning.replace("initial_model", "--init_from")
        if name in SPELLED:
            SPELLED[name](group)
        elif form == "pairs":
            group.pairs(name, _in_words(meaning, "="))
        elif form in ("rounds", "list"):
            group.names(name, [], _in_words(meaning, ":"))
        elif name in CHOICES:
            group.text(name, default, option.text(CHOICES[name]))
        elif option.kind is bool:
            group.switch(name, default, meaning)
        elif option.kind is int:
            group.integer(name, default, meaning, option.low)
        elif option.kind is float:
            group.number(name, default, meaning)
        elif option.kind is str:
            group.text(name, default, meaning)


def _in_words(meaning: str, equals: str) -> str:
    """Return a meaning with values as flags have them, such as "b1=0.8" for {'b1': 0.8}."""
    values = re.search(r"[{[](.*)[]}]$", meaning)
    if values is None:
        return meaning
    words = values[1].replace("'", "").replace(": ", equals).replace(", ", ",")
    return meaning[: values.start()] + words


# Options with flags of their own.
SPELLED: dict[str, Callable[[Group], None]] = {
    "extra_loss": lambda group: group.number(
        "wdr_weight",
        0.0,
        "weight distribution regularizer of cwFedAVG, added to every algorithm",
        0.0,
    ),
    "devices": lambda group: group.text(
        "devices",
        "auto",
        "devices that share the clients or the runs (--mesh); 'auto': a CPU's cores, else 1",
    ),
    "platform": lambda group: None,  # a run is made for the devices that it runs on
}


def _comparison(group: Group) -> None:
    group.names(
        "algorithms", ["local", "fedavg", "fedavg_ft", "feddwa"], "algorithms to compare, by name"
    )
    group.pairs(
        "set",
        "a hyperparameter, ALGORITHM.NAME=VALUE such as feddwa.top_k=5, or local training of one "
        "algorithm, such as feddwa.learning_rate=0.01",
    )
    plugins.define(group)


def _data(group: Group) -> None:
    group.text("dataset", "digits", "name of the data set, or npz:PATH for your own arrays")
    group.text("data_dir", None, "folder with the data set's files")
    _define_options(group, pfl.options.InputOptions)
    group.pairs("data_option", "an option of the data set's reader, such as image_size=32")
    meaning = (
        "samples for pretraining that no client gets: classes:0-4,7, share:0.2 or column:NAME=VALUE"
    )
    group.text("public", None, meaning)
    group.text("partition", "dirichlet", "rule that deals samples to clients")
    group.integer("num_clients", 20, "number of clients (by_column: all, unless it is given)", 1)
    group.integer("partition_seed", 0, "seed of the partition, for all seeds of the run", 0)
    meaning = (
        "NPZ file with each client's samples, or a folder of PFLlib's or FL-bench's, instead of a "
        "rule"
    )
    group.text("partition_file", None, meaning)
    meaning = (
        f"shift in features of the clients' images: none, {', '.join(pfl.data.FEATURE_SHIFTS)}"
    )
    group.text("feature_shift", "none", meaning)
    group.pairs("feature_shift_option", "an option of the shift in features, such as groups=2")
    group.number(
        "validation_fraction", 0.0, "part of each client's training samples for validation"
    )


def _training(group: Group) -> None:
    group.text("model", "cnn", "network of every client")
    _define_options(group, pfl.options.ModelOptions)
    _define_options(group, pfl.options.SharingOptions)
    group.integer("rounds", 50, "communication rounds", 1)
    _define_options(group, pfl.options.LocalTraining)
    _define_options(group, pfl.options.ParticipationOptions)
    _define_options(group, pfl.options.DriftOptions)


def _uploads(group: Group) -> None:
    _define_options(group, pfl.options.PrivacyOptions)
    _define_options(group, pfl.options.ThreatOptions)
    _define_options(group, pfl.options.CompressionOptions)


def _run(group: Group) -> None:
    group.integer(
        "num_seeds", 3, "repetitions, with the seeds SEED, SEED + 1, ...", 1, pfl.engine.MAX_RUNS
    )
    group.integer(
        "seed",
        0,
        "first seed of initial models, cohorts and batches, the same for all algorithms",
        0,
    )
    meaning = "rounds between evaluations; the last round is always evaluated"
    group.integer("eval_every", SIMULATED["eval_every"], meaning, 1)
    meaning = (
        "rounds without a better mean validation accuracy after which a run ends (default: never)"
    )
    group.integer("patience", None, meaning, 1)
    group.names(
        "score_clients", None, "clients whose models are scored (default: all that have one)"
    )
    group.names(
        "matrix_rounds",
        None,
        "rounds whose mixing matrices are saved (default: first, middle, last)",
    )
    group.text(
        "moments",
        "received",
        "when personalized models are scored: as received, or 'both', also copies after one "
        "further local training, as the model 'trained'",
    )
    _define_options(group, pfl.Adaptation, "adapt_", epochs=0, steps=0)
    meaning = "number of clients, the last ones, that are in no round and are scored at the end"
    group.integer("new_clients", 0, meaning, 0)
    meaning = "local steps after which new clients are scored, at the end"
    group.names("new_client_steps", list(map(str, SCORED["steps"])), meaning)
    meaning = "fractions of the new clients' training samples to train them with"
    group.names("new_client_samples", list(map(str, SCORED["fractions"])), meaning)
    _define_options(group, pfl.options.ScoringOptions)
    _define_options(group, pfl.options.ExecutionOptions)
    meaning = "a new folder, or that of the same run (default: runs/DATASET-PARTITION-HASH)"
    group.text("output_dir", None, meaning)
    meaning = (
        "seconds between checkpoints, where the same command continues; 0: as often as possible"
    )
    group.number("checkpoint_seconds", 60.0, meaning, 0.0)
    meaning = "keep the state before the last round, from which more rounds continue a finished run"
    group.switch("keep_state", False, meaning)
    meaning = (
        "how scores of clients and rounds become the number that leads the table: "
        f"{', '.join(HEADLINES)}; see docs/migrating.md"
    )
    group.text("headline", DEFAULT, meaning)
    group.switch("save_models", True, "write the final models")
    group.switch("tensorboard", False, "also write TensorBoard's event files during the run")
    group.text("wandb", None, "also log to this Weights & Biases project, or ENTITY/PROJECT")
    meaning = "also log to this MLflow experiment of the server at MLFLOW_TRACKING_URI"
    group.text("mlflow", None, meaning)
    group.text(
        "compilation_cache",
        "~/.cache/fedjax_pfl",
        "folder for compiled programs; '' for none",
    )


def distributed(values: flags.FlagValues) -> None:
    """Define the flag of a run in several processes."""
    meaning = (
        "several processes: 'auto' on a cluster, or HOST:PORT,COUNT,INDEX: address of process 0, "
        "number of processes, index of this one"
    )
    Group(values, "run").text("distributed", None, meaning)


def _help(group: Group) -> None:
    group.switch("list", False, "print the algorithms, data sets, partitions, models, and exit")
    group.help()


def define(define_more: Callable[[flags.FlagValues], None] | None = None) -> FlagValues:
    """Return the unparsed flags of a run, including those of libraries such as --verbosity.

    `define_more` adds the flags of another command that takes those of a run.
    """
    values = FlagValues()
    for name, group in zip(
        (*GROUPS, "help"),
        (_comparison, _data, data_flags.define_rule, _training, _uploads, _run, _help),
        strict=True,
    ):
        group(Group(values, name))
    if define_more is not None:
        define_more(values)
    for name in flags.FLAGS:
        flag = flags.FLAGS[name]
        if name == flag.name and name not in values:
            values[name] = flag
    return values


def parse(
    argv: Sequence[str], define_more: Callable[[flags.FlagValues], None] | None = None
) -> ExperimentConfig:
    """Parse a command line, whose `argv[0]` is the program's name, to a configuration.

    Names of algorithms, data sets and networks in other spellings become ours.

    Args:
      define_more: see `define`.

    Raises:
      InputError, absl.flags.Error: see `parse_words`.
    """
    values = define(define_more)
    _, typed = parse_words(values, argv)
    for name in repeated() - {"import_file", "set"}:
        values[name].value = last_of_each(value_of(values, name))
    grid = (setting_of(word).partition("=")[0].strip() for word in typed.get("grid", ()))
    given = {*typed, *grid}
    values["algorithms"].value, values["set"].value = canonical_names(
        value_of(values, "algorithms"), value_of(values, "set"), typed.get("set", ()), given
    )
    epochs, steps = "local_epochs", "local_steps"
    if {epochs, steps} <= typed.keys():
        raise pfl.InputError(f"--{epochs} and --{steps} can't both be given: leave one out.")
    for one, other in ((epochs, steps), (steps, epochs)):  # of a preset
        if one in given and other not in typed:
            values[other].unparse()
    for name, (valid, others) in names_of_flags().items():
        word = value_of(values, name) if name in values else None
        if isinstance(word, str):
            values[name].value = name_matching.canonical_name(word, valid, others)
    data_flags.replace_partition(values, typed.keys())
    data_flags.resolve_dataset(values)
    data_flags.use_own_partition(values, typed.keys())
    group_of = {
        flag.name: group
        for group, members in values.flags_by_module_dict().items()
        for flag in members
    }
    return ExperimentConfig({
        name: Setting(flag.value, flag.default, bool(flag.present), group_of.get(name, ""))
        for name, flag in ((name, values[name]) for name in values)
        if name == flag.name
    })  # fmt: skip


def names_of_flags() -> dict[str, tuple[Collection[str], dict[str, tuple[str, ...]]]]:
    """Return the valid names of flags that take one, and aliases of these names."""
    known = [pfl.options.declared(group) for group in pfl.options.GROUPS]
    options = [one for group in known for one in group.values() if one.choices]
    return {one.name: (one.choices, {}) for one in options} | {
        "feature_shift": (pfl.data.FEATURE_SHIFTS, {}),
        "headline": (HEADLINES, {}),
        "model": (pfl.models.MODELS, aliases.MODELS),
        "partition": (pfl.data.RULES, {}),
    }


@cache
def repeated() -> frozenset[str]:
    """Return the names of repeatable flags."""
    values = define()
    return frozenset(name for name in values if isinstance(values[name], flags.MultiFlag))


def given_words(config: ExperimentConfig, without: Collection[str] = ()) -> list[str]:
    """Return the given flags as words, without flags that name places or code and `without`."""
    return [
        word
        for name, one in config.settings.items()
        if one.present and one.group in GROUPS and name not in {*flag_roles.NOT_INHERITED, *without}
        for word in flag_words(name, one.value)
    ]


def flag_words(name: str, value: Any) -> list[str]:
    """Return the words that set a flag: several of a repeatable flag, none for None."""
    if name in repeated():
        return [f"--{name}={word}" for word in value]
    if isinstance(value, bool):
        return [f"--{'' if value else 'no'}{name}"]
    text = ",".join(map(str, value)) if isinstance(value, list) else value
    return [] if value is None else [f"--{name}={text}"]


def answered(
    config: ExperimentConfig,
    usage: str,
    groups: Sequence[str],
    define_more: Callable[[flags.FlagValues], None],
    below: str = "",
    catalogue: Callable[[], str] = console.catalogue,
) -> bool:
    """Print what --help or --list asks for; return whether one of them was given.

    Args:
      config: the flags.
      usage, below: what --help prints before and after the flags.
      groups: those whose flags it prints.
      define_more: see `define`.
      catalogue: returns what --list prints.
    """
    if config.help:
        values = define(define_more)
        print("\n".join([usage, *map(values.module_help, groups), *filter(None, [below])]))
    elif config.list:
        print(catalogue())
    return bool(config.help or config.list)


USAGE = f"""\
Compare personalized federated learning algorithms and write the results.

  {called("run")} --algorithms=local,fedavg,feddwa --dataset=digits --alpha=0.1
  {called("run")} --preset=digits_quick --rounds=20

A later flag wins over an earlier one, also over those of a --preset or --flagfile. --list shows the
algorithms, data sets, networks and presets, and each partition rule's options and their defaults.
"""
