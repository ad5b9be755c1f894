"""The data set and the partition that flags ask for."""

import absl.flags

import fedjax_pfl as pfl
from fedjax_pfl.data.files import as_path

from . import console, flags
from .flagfiles import value_of
from .pairs import name_and_value, parse_pairs


def load_dataset(args: absl.flags.FlagValues, column: str | None = None) -> pfl.Dataset:
    """The data set of --dataset, --data_dir and --data_option.

    A reader that keeps only the columns that it is told keeps the one of which clients are made:
    `column`, by default that of --column.
    """
    column = column or value_of(args, "column")
    source = pfl.data.DATASETS.get(args.dataset.partition(":")[0])
    texts = [] if source is None else source.text_options
    options = parse_pairs(args, "data_option", texts)
    if column and "id_columns" in texts:
        options.setdefault("id_columns", column)
    return pfl.load_dataset(args.dataset, args.data_dir, **options)


def num_clients(args: absl.flags.FlagValues) -> int | None:
    """--num_clients; None, for all, where the data have clients and the flag is not given."""
    rule = pfl.data.RULES.get(args.partition)
    every = rule is not None and rule.natural and not args["num_clients"].present
    return None if every else args.num_clients


def make_partition(args: absl.flags.FlagValues, dataset: pfl.Dataset) -> pfl.Partition:
    """The partition of a file or a rule, with its validation samples."""
    given = flags.given_flags(args, "rule")
    if args.partition_file is not None:
        given += [name for name in ("partition",) if args[name].present]
        if given:
            raise pfl.InputError(
                f"--{given[0]} can't be given with --partition_file: the file has the partition."
            )
        partition = pfl.read_partition(as_path("--partition_file", args.partition_file), dataset)
        if args["num_clients"].present and args.num_clients != partition.num_clients:
            raise pfl.InputError(
                f"--num_clients is {args.num_clients}, but {args.partition_file} has "
                f"{partition.num_clients} clients: leave the flag out."
            )
    else:
        own = console.rule_flags(args.partition)
        given = [name for name in given if name != "partition_option"]
        for name in given:
            if name not in own:
                valid = ", ".join(f"--{flag}" for flag in own)
                takers = [
                    rule for rule in sorted(pfl.data.RULES) if name in console.rule_flags(rule)
                ]
                raise pfl.InputError(
                    f"--{name} is no option of partition rule {args.partition!r}, which takes "
                    f"{valid}. Rules that take it: {', '.join(takers)}."
                )
        options = {flags.RULE_OPTION.get(name, name): value_of(args, name) for name in given}
        for word in args.partition_option:
            name, value = name_and_value("partition_option", word)
            if name in options:
                raise pfl.InputError(f"The option {name!r} of the partition rule is given twice.")
            options[name] = value
        texts = {name: value for name, value in options.items() if isinstance(value, str)}
        defaults = pfl.data.rule_options(args.partition)
        options |= pfl.data.parse_options(texts, defaults, "option of the partition rule")
        count = num_clients(args)
        partition = pfl.make_partition(
            args.partition, dataset, count, args.partition_seed, **options
        )
    if args.validation_fraction:
        partition = partition.split_validation(args.validation_fraction, args.partition_seed)
    for split in ("train", "test"):
        if not partition.sizes(split).sum():
            raise pfl.InputError(
                f"The partition has no {split} samples, so there is nothing to score."
            )
    return partition
