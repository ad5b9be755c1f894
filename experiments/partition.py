"""Partitions and their statistics without training: `python -m experiments.partition --help`.

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

from datetime import datetime
from pathlib import Path
from typing import Any

import absl.flags

import fedjax_pfl as pfl
from fedjax_pfl.data.atomic_files import writing
from fedjax_pfl.data.partitions import partition_plots as plots
from fedjax_pfl.utils.conversions import convert
from fedjax_pfl.utils.errors import require

from .cli import console, flags, shell
from .cli.config import ExperimentConfig
from .cli.data_flags import complete_partition, load_dataset, make_partition, partition_summary
from .cli.flag_groups import Group, new_path
from .cli.parsing import name_and_value
from .cli.start import called
from .outputs.run_files import atomic_write, write_json, write_picture

USAGE = f"""\
Draw a partition and count each client's samples, without training.

  {called("partition")} --dataset=digits --partition=dirichlet --alphas=0.01,0.1,1
  {called("partition")} --dataset=digits --partition=waffle --num_clients=10 \\
      --partition_option='distribution=B*'
  {called("partition")} --dataset=fashion_mnist --data_dir=DATA \\
      --import_split=pfllib:PFLlib/dataset/FashionMNIST

All flags of {called("run")} on data and partition are used; others are ignored, so
that a --preset is accepted. Options of an importer are --partition_option=NAME=VALUE.
"""


def define(values: absl.flags.FlagValues) -> None:
    """Define the flags beside those of a run."""
    group = Group(values, "partition")
    meaning = "SOURCE:PATH of a split of another tool, instead of a rule"
    group.text("import_split", None, meaning)
    group.names("alphas", [], "several values of the rule's alpha to compare")


def build(config: ExperimentConfig, dataset: pfl.Dataset) -> dict[str, pfl.Partition]:
    """Make the chosen partitions, one or one per alpha, by their files' suffixes."""
    names = ("partition", "partition_file", "import_split")
    chosen = [name for name in names if config[name].present]
    if len(chosen) > 1:
        raise pfl.InputError(f"Give one of --{' and --'.join(chosen)}, not both.")
    if config.import_split is not None or config["partition_file"].present:
        seeded = config.validation_fraction or config.feature_shift != "none"
        of_rules = ["num_clients", "alphas", *([] if seeded else ["partition_seed"])]
        useless = [
            name
            for name in (*of_rules, *config.by_group()["rule"])
            if config[name].present and (config.import_split is None or name != "partition_option")
        ]
        if useless:
            raise pfl.InputError(f"--{useless[0]} is for rules: it can't be given with a file.")
    if config.import_split is not None:
        return {"": _imported(config, dataset)}
    if not config["alphas"].present:
        return {"": make_partition(config, dataset)}
    if config["alpha"].present:
        raise pfl.InputError("Give --alpha or --alphas, not both.")
    partitions = {}
    for text in config.alphas:
        alpha = convert("--alphas", text, float)
        name = f"alpha={alpha:g}"
        if name in partitions:
            raise pfl.InputError(
                f"--alphas names {name} twice, to the six digits that names of files have."
            )
        partitions[name] = make_partition(config.replace(alpha=alpha), dataset)
    if not partitions:
        raise pfl.InputError("--alphas must name at least one number, such as 0.1,1.")
    return partitions


def _imported(config: ExperimentConfig, dataset: pfl.Dataset) -> pfl.Partition:
    source, colon, path = config.import_split.partition(":")
    require(bool(colon), "--import_split", config.import_split, "SOURCE:PATH")
    if source not in pfl.data.IMPORTERS:
        kind = "source in --import_split=SOURCE:PATH"
        raise pfl.core.unknown_name(kind, source, pfl.data.IMPORTERS)
    texts = dict(name_and_value("partition_option", word) for word in config.partition_option)
    known = pfl.data.IMPORTERS[source].options
    options = pfl.data.parse_options(texts, known, f"option of importer {source!r}")
    return complete_partition(config, pfl.data.import_partition(source, path, dataset, **options))


def output_folder(args: ExperimentConfig) -> Path:
    """Return the folder to write to, which must not exist yet."""
    if args.output_dir is None:
        rule = args.partition
        if args.partition_file is not None or args.import_split is not None:
            rule = "file"
        return Path("runs") / f"partition-{rule}-{datetime.now():%Y%m%d-%H%M%S}"
    if not args.output_dir.strip():
        raise pfl.InputError("--output_dir must be the name of a folder, got ''.")
    return new_path("output_dir", args.output_dir) or Path()


def write(
    output: Path,
    dataset: pfl.Dataset,
    partitions: dict[str, pfl.Partition],
    statistics: dict[str, dict[str, Any]],
) -> None:
    """Write files, numbers (`partition_statistics`, by name) and pictures of every partition."""
    with writing(output):
        output.mkdir(parents=True)
    labels, num_classes = dataset.labels, dataset.num_classes
    names = dataset.class_names or None
    for name, partition in partitions.items():
        end = f"-{name}" if name else ""
        with atomic_write(output / f"partition{end}.npz") as part:
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


def lines(name: str, partition: pfl.Partition, dataset: pfl.Dataset, facts: dict) -> str:
    """Format the summary and the clients' heterogeneity."""
    classes, effective = facts["classes_per_client"]["mean"], facts["effective_classes"]["mean"]
    apart = facts["total_variation"]["mean"]
    text = [f"{name}: " if name else "", partition_summary(partition, dataset), "\n"]
    if classes is not None:
        text.append(f"{classes:.2f} classes a client, {effective:.2f} effective; ")
    if apart is not None:
        text.append(f"mean total variation distance of two clients {apart:.3f}; ")
    text.append(f"{facts['unused_samples']} samples unused")
    if partition.options.get("ambiguous_samples"):
        text.append(f"; {partition.options['ambiguous_samples']} samples had equal copies")
    return "".join(text)


def catalogue() -> str:
    """Return rules with their options, and importers."""
    rules = [
        (name, console.first_line(rule.plan),
         pfl.data.rule_options(name) | {"test_split": rule.test_split})
        for name, rule in sorted(pfl.data.RULES.items())
    ]  # fmt: skip
    lines = console.listed("Partition rules (--partition):", rules)
    importers = [(name, one.description, one.options) for name, one in pfl.data.IMPORTERS.items()]
    lines += console.listed("\nSplits of other tools (--import_split=SOURCE:PATH):", importers)
    return "\n".join(lines)


@shell.script()
def main(argv: list[str]) -> int:
    """Run the command."""
    args = flags.parse(argv, define)
    groups = ("partition", "data", "rule")
    if flags.answered(args, USAGE, groups, define, catalogue=catalogue):
        return 0
    output = output_folder(args)
    dataset = load_dataset(args)
    partitions = build(args, dataset)
    labels, num_classes = dataset.labels, dataset.num_classes
    statistics = {
        name: pfl.data.partition_statistics(partition, labels, num_classes)
        for name, partition in partitions.items()
    }
    write(output, dataset, partitions, statistics)
    said = [lines(name, one, dataset, statistics[name]) for name, one in partitions.items()]
    print("\n\n".join(said))
    print(f"\nPictures, numbers and the partition: {output}")
    return 0
