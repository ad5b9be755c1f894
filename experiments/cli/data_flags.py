"""The data set and the partition that flags ask for."""

import inspect
import re
from collections.abc import Collection, Set
from functools import lru_cache
from pathlib import Path

import absl.flags

import fedjax_pfl as pfl
from fedjax_pfl.data.files import as_path
from fedjax_pfl.utils import aliases, name_matching

from .config import ExperimentConfig
from .flag_groups import Group
from .parsing import name_and_value, parse_pairs, value_of

OTHER_PARTITIONS = ("partition", "import_split", "alphas")  # than a data set's own
PREFIX = "pfllib:"
SAMPLES = ("pfllib", "leaf")  # tools whose folders hold samples


def define_rule(group: Group) -> None:
    """Define the flags of the partition rules' options."""
    group.number("alpha", None, "concentration of Dir(alpha): small means few classes per client")
    group.integer(
        "min_size", None, "fewest samples of a client, before test samples are held out", 1
    )
    group.integer("max_retries", None, "further draws until every client holds min_size samples", 0)
    group.integer("classes_per_client", None, "classes that a client holds", 1)
    group.integer("groups", None, "groups of clients with the same dominant classes", 1)
    group.number("dominant_share", None, "part of a client's samples of dominant classes", 0.0, 1.0)
    group.text("dominant", None, "'contiguous' blocks of classes, or 'sampled' ones")
    group.integer("dominant_classes", None, "dominant classes of a group, if sampled", 1)
    group.integer("train_samples", None, "largest number of training samples of a client", 1)
    group.integer("test_samples", None, "largest number of test samples of a client", 1)
    meaning = (
        "test samples: 'official': the official ones, dealt by the same rule; 'pooled': all "
        "samples are dealt and a part of each client's is held out; 'train': the same with the "
        "training samples only; 'auto': the rule's choice"
    )
    group.text("test_split", None, meaning)
    meaning = "fraction of a client's samples held out, with --test_split=pooled or train"
    group.number("test_fraction", None, meaning)
    group.text("column", None, "column of client ids, such as writer, user, hospital (by_column)")
    group.pairs("partition_option", "an option of the partition rule, such as one of your own rule")
    # Further options of single rules, given as text and parsed by the rule's own types.
    takers: dict[str, list[tuple[str, str]]] = {}
    for rule in sorted(pfl.data.RULES):
        for option in pfl.data.rule_options(rule):
            takers.setdefault(option, []).append((rule, option))
    for name in sorted(set(takers) - set(group.values)):
        rules = ", ".join(rule for rule, _ in takers[name])
        group.text(name, None, f"{rules}: {_documented(*takers[name][0])}")


def _documented(rule: str, option: str) -> str:
    """Return the first sentence on an option in the docstring of its rule."""
    text = inspect.getdoc(pfl.data.RULES[rule].plan) or ""
    entry = re.search(rf"^  {option}: (.+(?:\n    .+)*)", text, re.MULTILINE)
    return " ".join(entry[1].split()).partition(". ")[0].rstrip(".") if entry else "an option"


def load_dataset(args: ExperimentConfig, shared: bool = False) -> pfl.Dataset:
    """Return the data set of --dataset, --data_dir and --data_option.

    A reader of chosen columns also keeps the one that defines the clients.

    Args:
      shared: whether to keep it for the next call of the same flags.
    """
    columns = [word for word in args.partition_option if word.startswith("column=")]
    column = columns[-1].partition("=")[2] if columns else args.column
    source = pfl.data.DATASETS.get(args.dataset.partition(":")[0])
    texts = [] if source is None else source.text_options
    options = parse_pairs(args, "data_option", texts)
    if column and "id_columns" in texts:
        options.setdefault("id_columns", column)
    public = None if args.public is None else (args.public, args.partition_seed)
    load = last_loaded if shared else _load
    return load(args.dataset, args.data_dir, tuple(options.items()), public)


def _load(
    name: str, data_dir: str | None, options: Collection[tuple], public: tuple[str, int] | None
) -> pfl.Dataset:
    dataset = pfl.load_dataset(name, data_dir, **dict(options))
    return dataset if public is None else pfl.data.split_public(dataset, *public)[1]


last_loaded = lru_cache(maxsize=1)(_load)


def num_clients(args: ExperimentConfig) -> int | None:
    """Return --num_clients; None, all clients, if the data name them and it is not given."""
    rule = pfl.data.RULES.get(args.partition)
    every = rule is not None and rule.natural and not args["num_clients"].present
    return None if every else args.num_clients


def partition_summary(partition: pfl.Partition, dataset: pfl.Dataset) -> str:
    """Return lines on a partition, and on an official test split that it does not keep."""
    again = dataset.num_test and partition.options.get("test_split") == "pooled"
    how = "\ntest_split=pooled: the official test samples are dealt with the training samples"
    return partition.summary() + how * bool(again)


def make_partition(args: ExperimentConfig, dataset: pfl.Dataset) -> pfl.Partition:
    """Return the partition of a file or a rule, with its validation samples."""
    names = [name for name in args if args[name].present and args[name].group == "rule"]
    if args.partition_file is not None:
        names += [name for name in ("partition",) if args[name].present]
        if names:
            raise pfl.InputError(
                f"--{names[0]} can't be given with --partition_file: the file has the partition."
            )
        drawn = args.validation_fraction or args.feature_shift != "none" or args.public
        if args["partition_seed"].present and not drawn:
            raise pfl.InputError("--partition_seed is for rules: --partition_file draws nothing.")
        partition = pfl.read_partition(as_path("--partition_file", args.partition_file), dataset)
        if args["num_clients"].present and args.num_clients != partition.num_clients:
            raise pfl.InputError(
                f"--num_clients is {args.num_clients}, but {args.partition_file} has "
                f"{partition.num_clients} clients: leave the flag out."
            )
    else:
        defaults = pfl.data.rule_options(args.partition)
        names = [name for name in names if name != "partition_option"]
        for name in names:
            if name not in defaults:
                valid = ", ".join(f"--{flag}" for flag in defaults)
                rules = sorted(pfl.data.RULES)
                takers = [rule for rule in rules if name in pfl.data.rule_options(rule)]
                raise pfl.InputError(
                    f"--{name} is not an option of partition rule {args.partition!r}, which takes "
                    f"{valid}. Rules that take it: {', '.join(takers)}."
                )
        options = {name: args[name].value for name in names}
        for word in args.partition_option:
            name, value = name_and_value("partition_option", word)
            if name in options:
                raise pfl.InputError(f"The option {name!r} of the partition rule is given twice.")
            options[name] = value
        texts = {name: value for name, value in options.items() if isinstance(value, str)}
        options |= pfl.data.parse_options(texts, defaults, "option of the partition rule")
        count = num_clients(args)
        partition = pfl.make_partition(
            args.partition, dataset, count, args.partition_seed, **options
        )
    return complete_partition(args, partition)


def complete_partition(args: ExperimentConfig, partition: pfl.Partition) -> pfl.Partition:
    """Return the partition with the flags' shift in features and validation samples.

    Raises:
      InputError: it has no training samples, or no test samples.
    """
    partition = _shifted(args, partition)
    if args.validation_fraction:
        partition = partition.split_validation(args.validation_fraction, args.partition_seed)
    for split in ("train", "test"):
        if not partition.sizes(split).sum():
            raise pfl.InputError(
                f"The partition has no {split} samples: take another rule, or other options."
            )
    return partition


def _shifted(args: ExperimentConfig, partition: pfl.Partition) -> pfl.Partition:
    """Return the partition with the shift in features of --feature_shift."""
    words = args.feature_shift_option
    if args.feature_shift == "none":
        if words:
            raise pfl.InputError(f"--feature_shift_option={words[0]} needs a --feature_shift.")
        return partition
    options = dict(name_and_value("feature_shift_option", word) for word in words)
    return pfl.data.shift_features(partition, args.feature_shift, args.partition_seed, **options)


def _options(values: absl.flags.FlagValues) -> set[str]:
    return {flag.name for flag in values.get_flags_for_module("rule")}


def replace_partition(values: absl.flags.FlagValues, typed: Set[str]) -> None:
    """Replace a flagfile's split by that of the command line.

    A preset's rule has options that another rule or a file does not take; they are left out.

    Args:
      values: flags; changed in place.
      typed: names of flags of the command line itself.
    """
    chosen = {"partition", "partition_file", "import_split"} & typed
    if chosen == {"partition_file"} or chosen == {"import_split"}:
        _unparse(values, _options(values) | {"partition", "partition_file", "num_clients"}, typed)
    elif chosen == {"partition"}:
        rule = values["partition"].value
        taken = pfl.data.rule_options(rule) if rule in pfl.data.RULES else {}
        _unparse(values, (_options(values) - taken.keys()) | {"partition_file"}, typed)


def _drop_partition(values: absl.flags.FlagValues, typed: Set[str]) -> None:
    """Drop a flagfile's split if --dataset on the command line has its own split."""
    split = _options(values) | {"partition", "partition_file"}
    if "dataset" in typed and not split & typed:
        _unparse(values, split | {"num_clients"}, typed)


def _unparse(values: absl.flags.FlagValues, names: Set[str], typed: Set[str]) -> None:
    for name in names - typed:
        values[name].unparse()


def resolve_dataset(values: absl.flags.FlagValues) -> None:
    """Rewrite --dataset=FOLDER of another tool as pfllib:FOLDER or leaf:FOLDER, and other spellings
    of a data set's name, such as FashionMNIST, as ours.

    Args:
      values: flags; changed in place.

    Raises:
      InputError: the folder is FL-bench's, which has indices and no samples.
    """
    dataset = value_of(values, "dataset")
    if dataset not in pfl.data.DATASETS and ":" not in dataset and dataset.strip():
        place = as_path("--dataset", dataset)
        source = pfl.data.detect_tool(place)
        if source == "flbench":
            raise _of_flbench(place)
        if source in SAMPLES:
            values["dataset"].value = f"{source}:{dataset}"
    name, colon, place = value_of(values, "dataset").partition(":")
    name = name_matching.canonical_name(name, pfl.data.DATASETS, aliases.DATASETS)
    values["dataset"].value = f"{name}{colon}{place}"


def use_own_partition(values: absl.flags.FlagValues, typed: Set[str]) -> None:
    """Take the split that the data set has, unless another is given.

    The split of a folder of PFLlib's takes the place of a flagfile's rule. Data sets that say whose
    their samples are get clients by column.

    Args:
      values: flags, with the data set's name in our spelling; changed in place.
      typed: names of flags of the command line itself.
    """
    dataset = value_of(values, "dataset")
    if dataset.startswith(PREFIX):
        _drop_partition(values, typed)
    dealt = values["partition_file"].value is not None or any(
        values[name].present for name in OTHER_PARTITIONS if name in values
    )
    if dataset.startswith(PREFIX) and not dealt:
        values["partition_file"].value = dataset.removeprefix(PREFIX)
    source = pfl.data.DATASETS.get(dataset.partition(":")[0])
    if source is not None and source.natural and not dealt:
        values["partition"].value = "by_column"


def _of_flbench(place: Path) -> pfl.InputError:
    """Return the error for --dataset=FOLDER of FL-bench."""
    name = place.resolve().name
    ours = name_matching.find_matches(name, pfl.data.DATASETS, aliases.DATASETS)
    raw = next((path for path in place.glob("*/raw") if path.is_dir()), None)
    where = "FOLDER" if raw is None else raw
    return pfl.InputError(
        f"{place} is a folder of FL-bench's, which holds a split: give the data set by name, "
        f"--dataset={ours[0] if ours else 'NAME'} --data_dir={where}, and "
        f"--partition_file={place}."
    )
