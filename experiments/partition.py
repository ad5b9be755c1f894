"""Draws a partition and its statistics without training: `python -m experiments.partition --help`.

It writes into a new folder:

OUTPUT/partition.npz    each client's samples (`Partition.load` and --partition_file read it)
OUTPUT/partition.json   rule, options, and how unequal the clients are
OUTPUT/partition.png    samples by client and class, and sizes
OUTPUT/sizes.png        samples of each client
OUTPUT/label_map.png    with concept shift: the labels that each client sees
OUTPUT/alphas.png       with --alphas: one picture for each in a row; the files above then get
                        names such as partition-alpha=0.1.npz
"""

if __name__ == "__main__":  # before anything is loaded
    from .cli.start import launch

    launch("partition")

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

import absl.flags

import fedjax_pfl as pfl
from fedjax_pfl.data.files import as_path
from fedjax_pfl.data.whole_files import there, writing
from fedjax_pfl.results import partition_plots as plots

from .cli import plugins, shell
from .cli.data_flags import RULE_FLAG, RULE_OPTION, adopt, load_dataset, num_clients
from .cli.parsing import FlagValues, Whole, name_and_value, parse_words, value_of
from .cli.start import called
from .outputs.run_files import aside, write_json, write_picture

USAGE = f"""\
Draws a partition and counts each client's samples, without training.

  {called("partition")} --dataset=digits --partition=dirichlet --alphas=0.01,0.1,1
  {called("partition")} --dataset=digits --partition=waffle --num_clients=10 \\
      --partition_option='distribution=B*'
  {called("partition")} --dataset=fashion_mnist --data_dir=DATA \\
      --import_split=pfllib:PFLlib/dataset/FashionMNIST

Options of the partition rule or importer: --NAME=VALUE, or --partition_option=NAME=VALUE.
"""


def parse(argv: Sequence[str]) -> absl.flags.FlagValues:
    """Flag values; every option of any rule or importer is a flag of text, None if not given."""
    values = FlagValues()
    place = {"flag_values": values, "module_name": "partition"}
    text = absl.flags.DEFINE_string

    def whole(name: str, default: int, meaning: str, low: int) -> None:
        serializer = absl.flags.ArgumentSerializer()
        parser = Whole(name, low)
        absl.flags.DEFINE(parser, name, default, meaning, serializer=serializer, **place)

    text("dataset", "digits", "name of the data set, or npz:PATH for your own arrays", **place)
    text("data_dir", None, "folder with the data set's files", **place)
    option = "NAME=VALUE, an option of the data set's reader"
    absl.flags.DEFINE_multi_string("data_option", [], option, **place)
    text("partition", "dirichlet", "rule that deals samples to clients", **place)
    whole("num_clients", 20, "number of clients", 1)
    whole("partition_seed", 0, "fixes the partition", 0)
    text(
        "partition_file",
        None,
        "NPZ file of a partition, or another tool's split, instead of a rule",
        **place,
    )
    plugins.define(place)
    text("import_split", None, "SOURCE:PATH of a split of another tool, instead of a rule", **place)
    absl.flags.DEFINE_list("alphas", [], "several values of the rule's alpha to compare", **place)
    text("output_dir", None, "a new folder (default: runs/partition-RULE-DATE-TIME)", **place)
    absl.flags.DEFINE_multi_string(
        "partition_option", [], "NAME=VALUE, an option of the rule or importer", **place
    )
    absl.flags.DEFINE_boolean("list", False, "print the rules and importers, and exit", **place)
    absl.flags.DEFINE_boolean("help", False, "print this, and exit", **place)
    place["module_name"] = "options"
    for option in dict.fromkeys(
        name for rule in pfl.data.RULES for name in pfl.data.rule_options(rule)
    ):
        text(RULE_FLAG.get(option, option), None, "option of a rule", **place)
    _, typed = parse_words(values, argv)
    adopt(values, typed, ("partition", "import_split", "alphas"))
    return values


def given_options(args: absl.flags.FlagValues) -> dict[str, str]:
    """Text of the options given, by option."""
    given = {
        RULE_OPTION.get(flag.name, flag.name): value_of(args, flag.name)
        for flag in args.get_flags_for_module("options")
        if flag.present
    }
    for word in args.partition_option:
        name, value = name_and_value("partition_option", word)
        if name in given:
            raise pfl.InputError(f"Option {name!r} is given twice.")
        given[name] = value
    return given


def build(args: absl.flags.FlagValues, dataset: pfl.Dataset) -> dict[str, pfl.Partition]:
    """The chosen partitions by the ending of their files' names: one, or one for each alpha."""
    given = given_options(args)
    chosen = [
        name for name in ("partition", "partition_file", "import_split") if args[name].present
    ]
    if len(chosen) > 1:
        raise pfl.InputError(f"Give one of --{' and --'.join(chosen)}, not both.")
    if args.partition_file is not None or args.import_split is not None:
        useless = [
            name for name in ("num_clients", "partition_seed", "alphas") if args[name].present
        ]
        useless += list(given) if args.import_split is None else []
        if useless:
            raise pfl.InputError(f"--{useless[0]} is for rules: it can't be given with a file.")
    if args.partition_file is not None:
        return {"": pfl.read_partition(as_path("--partition_file", args.partition_file), dataset)}
    if args.import_split is not None:
        source, _, path = args.import_split.partition(":")
        if source not in pfl.data.IMPORTERS:
            raise pfl.core.unknown_name(
                "source in --import_split=SOURCE:PATH", source, pfl.data.IMPORTERS
            )
        known = pfl.data.IMPORTERS[source].options
        options = pfl.data.parse_options(given, known, f"option of importer {source!r}")
        return {"": pfl.data.import_partition(source, path, dataset, **options)}
    defaults = pfl.data.rule_options(args.partition)
    kind = f"option of partition rule {args.partition!r}"
    texts = [given]
    if args["alphas"].present:
        if "alpha" in given:
            raise pfl.InputError("Give --alpha or --alphas, not both.")
        texts = [given | {"alpha": alpha} for alpha in args.alphas]
    partitions = {}
    for text in texts:
        options = pfl.data.parse_options(text, defaults, kind)
        name = f"alpha={options['alpha']:g}" if args["alphas"].present else ""
        if name in partitions:
            raise pfl.InputError(
                f"--alphas names {name} twice, to the six digits that names of files have."
            )
        partitions[name] = pfl.make_partition(
            args.partition, dataset, num_clients(args), args.partition_seed, **options
        )
    if not partitions:
        raise pfl.InputError("--alphas must name at least one number, such as 0.1,1.")
    return partitions


def output_folder(args: absl.flags.FlagValues) -> Path:
    """The folder to write to, which must not exist yet."""
    if args.output_dir is None:
        rule = args.partition
        if args.partition_file is not None or args.import_split is not None:
            rule = "file"
        return Path("runs") / f"partition-{rule}-{datetime.now():%Y%m%d-%H%M%S}"
    output = as_path("--output_dir", args.output_dir)
    if not args.output_dir.strip() or there("output_dir", output):
        raise pfl.InputError(
            f"--output_dir must be a new folder, as nothing is ever overwritten, got {output}."
        )
    return output


def write(
    output: Path,
    dataset: pfl.Dataset,
    partitions: dict[str, pfl.Partition],
    statistics: dict[str, dict],
) -> None:
    """Writes files, numbers (`partition_statistics`, by name) and pictures of every partition."""
    with writing(output):
        output.mkdir(parents=True)
    labels, num_classes = dataset.labels, dataset.num_classes
    names = dataset.class_names or None
    for name, partition in partitions.items():
        end = f"-{name}" if name else ""
        with aside(output / f"partition{end}.npz") as part:
            partition.save(part)
        facts = {"dataset": dataset.name, "rule": partition.rule, "options": partition.options}
        facts |= statistics[name]
        write_json(output / f"partition{end}.json", facts)
        what = f"{dataset.name}, {partition.rule}{f', {name}' if name else ''}"
        what += f", {partition.num_clients} clients"
        picture = plots.heatmap(partition, labels, num_classes, what, names)
        write_picture(output / f"partition{end}.png", picture)
        write_picture(output / f"sizes{end}.png", plots.size_bars(partition, what))
        if partition.label_map is not None:
            picture = plots.label_map(partition, what, names)
            write_picture(output / f"label_map{end}.png", picture)
    if "" not in partitions:
        first = next(iter(partitions.values()))
        what = f"{dataset.name}, {first.rule}, {first.num_clients} clients"
        picture = plots.comparison(partitions, labels, num_classes, what, names)
        write_picture(output / "alphas.png", picture)


def lines(name: str, partition: pfl.Partition, facts: dict) -> str:
    """The summary, and how unequal the clients are, in words."""
    classes, effective = facts["classes_per_client"]["mean"], facts["effective_classes"]["mean"]
    apart = facts["total_variation"]["mean"]
    text = [f"{name}: " if name else "", partition.summary(), "\n"]
    if classes is not None:
        text.append(f"{classes:.2f} classes a client, {effective:.2f} effective; ")
    if apart is not None:
        text.append(f"total variation of two clients {apart:.3f}; ")
    text.append(f"{facts['unused_samples']} samples unused")
    if partition.options.get("ambiguous_samples"):
        text.append(f"; {partition.options['ambiguous_samples']} samples had equal copies")
    return "".join(text)


def catalogue() -> str:
    """Rules with their options, and importers."""
    shown = ["Partition rules (--partition):"]
    for rule in sorted(pfl.data.RULES):
        defaults = pfl.data.rule_options(rule) | {"test_split": pfl.data.RULES[rule].test_split}
        options = ", ".join(f"{k}={v}" for k, v in defaults.items() if v is not None)
        first = (pfl.data.RULES[rule].plan.__doc__ or "").partition("\n")[0]
        shown.append(f"  {rule:20} {first}\n  {'':20} {options}")
    shown.append("\nSplits of other tools (--import_split=SOURCE:PATH):")
    for source, importer in pfl.data.IMPORTERS.items():
        options = ", ".join(f"{k}={v}" for k, v in importer.options.items())
        shown.append(f"  {source:20} {importer.description}\n  {'':20} {options}")
    return "\n".join(shown)


@shell.script()
def main(argv: list[str]) -> int:
    """Runs the script."""
    args = parse(argv)
    if args["help"].value:
        print(f"{USAGE}\n{args.module_help('partition')}")
        return 0
    if args["list"].value:
        print(catalogue())
        return 0
    output = output_folder(args)
    dataset = load_dataset(args, given_options(args).get("column"))
    partitions = build(args, dataset)
    labels, num_classes = dataset.labels, dataset.num_classes
    statistics = {
        name: pfl.data.partition_statistics(partition, labels, num_classes)
        for name, partition in partitions.items()
    }
    write(output, dataset, partitions, statistics)
    print("\n\n".join(lines(name, one, statistics[name]) for name, one in partitions.items()))
    print(f"\nPictures, numbers and the partition: {output}")
    return 0
