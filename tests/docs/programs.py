"""What the programs that the pages call have against their words, before anything is done.

`check` reads flags, files and presets as the program itself would, and makes its algorithms.
"""

import re
from importlib.metadata import requires
from itertools import pairwise
from pathlib import Path

from packaging.requirements import Requirement

import fedjax_pfl as pfl
from experiments import compare, partition, pretrain, reproduce, study, sweep
from experiments.cli import algorithms, flags
from experiments.figures import __main__ as figures
from experiments.figures.scores import AVERAGES, SCORES
from fedjax_pfl.data.partitions.importers import IMPORTERS
from fedjax_pfl.data.partitions.rule_registry import parse_options, rule_options
from tests.docs import pages
from tests.docs.pages import ROOT
from tools import compare_revisions
from tools.benchmark import __main__ as benchmark


def check_run(words):
    """The algorithms are made, the rule's options known; flagfiles, and those they name, are
    read."""
    return check_config(flags.parse(["run", *words], flags.distributed))


def check_config(args):
    _ = args.federation_options(), args.scored_clients, args.recorded_rounds, args.adaptation
    own = pfl.data.rule_options(args.partition)
    for name in args.by_group()["rule"]:
        if args[name].present and name not in own:
            raise pfl.core.unknown_name(f"flag of rule {args.partition!r}", name, own)
    return args.instances


def check_sweep(words):
    config = flags.parse(["sweep", *words], sweep.define)
    for cell in sweep.programs(check_config(config), sweep.parse_grid(config.grid)):
        check_config(cell.parsed(["sweep", *words], sweep.define))
        for one in cell.inside:
            own = [f"{name}={value}" for name, value in one.items() if "." in name]
            algorithms.parse_algorithms([cell.algorithm], own)


def check_study(words):
    config = flags.parse(["study", *words], study.define)
    for cell in study.cells_of(["study", *words], config, Path("runs/study")):
        check_config(cell.config)


def check_compare(words):
    args = compare.parse(["compare", *words])
    assert args.runs
    assert args.score in SCORES
    assert args.average in AVERAGES


def check_figures(words):
    name, args = figures.parse(["figures", *words])
    if args["list"].value:
        return
    if name not in figures.FIGURES:
        raise pfl.core.unknown_name("figure", name, figures.FIGURES)
    figure = figures.FIGURES[name]
    parse_options(figures.options_given(args), figure.options, f"option of {name}")
    assert args.runs
    for file in filter(None, (args.output, args.data)):
        assert not Path(file).exists()


def check_partition(words):
    args = flags.parse(["partition", *words], partition.define)
    if args.import_split is not None:
        source, colon, path = args.import_split.partition(":")
        assert colon and path
        texts = dict(word.split("=") for word in args.partition_option)
        parse_options(texts, IMPORTERS[source].options, "option")
        return
    check_config(args)
    for alpha in args.alphas:
        parse_options({"alpha": alpha}, rule_options(args.partition), "option")


def check_reproduce(words):
    chosen, more = reproduce.parse(["reproduce", *words])
    if not chosen.list:
        assert reproduce.requests_of(chosen, more)


def check_benchmark(words):
    args = benchmark.parse(["benchmark", *words])
    assert set(args.case) <= {*benchmark.CASES, "all"}


def check_pretrain(words):
    args = pretrain.parse(["pretrain", *words])
    assert args.output


def check_pytest(words):
    """Files and folders exist."""
    values = ("-k", "-m", "-n")
    for before, word in pairwise(["", *words]):
        assert word.startswith("-") or before in values or (ROOT / word).exists(), word


def check_place(words):
    """One file or folder of the repository, to be written anew."""
    (place,) = words
    assert (ROOT / place).exists()


def check_picture(words):
    """A picture of the repository, to be drawn anew from folders of runs."""
    picture, *folders = words
    check_place([picture])
    assert folders


SCRIPTS = {
    "experiments.run": check_run,
    "experiments.sweep": check_sweep,
    "experiments.study": check_study,
    "experiments.compare": check_compare,
    "experiments.figures": check_figures,
    "experiments.partition": check_partition,
    "tools.compare_revisions": lambda words: compare_revisions.parser().parse_args(words),
    "tools.settings_table": check_place,
    "tools.partition_gallery": check_place,
    "tools.claims": lambda words: [check_place([word]) for word in words],
    "tools.leaderboard": check_place,
    "tools.leaderboard_queue": lambda words: check_place(words[:1]),
    "tools.reproduced_pages": check_picture,
    "tools.demo_picture": check_picture,
    "experiments.reproduce": check_reproduce,
    "tools.benchmark": check_benchmark,
    "experiments.pretrain": check_pretrain,
    "pytest": check_pytest,
}


def check_python(words):
    option, what, *rest = words
    if option == "-c":
        return compile(what, "command", "exec")
    assert option == "-m"
    if what == "venv":
        return None
    assert what in SCRIPTS, f"unknown script {what}"
    return SCRIPTS[what](rest)


def check_pip(words):
    """Files and extras exist; names are those of this project's requirements."""
    first, *rest = words
    if first == "freeze":
        return
    assert first in ("install", "wheel")
    known = {Requirement(line).name.lower() for line in requires("fedjax_pfl")}
    config = (ROOT / "setup.cfg").read_text(encoding="utf-8")
    before = ""
    for word in rest:
        if before == "-r":
            assert (ROOT / word).exists(), word
        elif before == "-e" or word.startswith("."):
            extra = re.fullmatch(r"\.(?:\[([\w-]+)\])?", word)[1]
            assert extra is None or f"\n{extra} =" in config, word
        elif word.startswith("fedjax_pfl["):
            assert f"\n{word.removeprefix('fedjax_pfl[')[:-1]} =" in config, word
        elif not word.startswith("-"):
            assert Requirement(word).name.lower() in known, word
        before = word


def check_make(words):
    """Targets and variables are the Makefile's."""
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    for word in words:
        variable, equals, _ = word.partition("=")
        if equals:
            assert f"$({variable})" in text, word
        else:
            phony = text.partition(".PHONY:")[2].replace("\\\n", " ").splitlines()[0]
            assert word in phony.split(), word


def check_file(words):
    assert not words


PROGRAMS = {
    "python": check_python,
    "python3": check_python,
    "pip": check_pip,
    "make": check_make,
    "run": check_file,
    "pre-commit": lambda words: None,
    "tensorboard": lambda words: None,  # not ours
    "git": lambda words: None,
    "cd": lambda words: None,
} | {command: SCRIPTS[module] for command, module in pages.COMMANDS.items()}


def check(words):
    """Raises what the program itself, or an assertion, has against its words."""
    program, *rest = words
    if "/" in program and not program.startswith(".venv/"):
        assert (ROOT / program).exists()
    PROGRAMS[Path(program).name](rest)
