"""What the pages say of other libraries' flags is what the commands answer."""

import ast
import re

import pytest

import fedjax_pfl as pfl
from experiments.cli import flags, unknown_flags
from experiments.cli.algorithms import parse_algorithms
from fedjax_pfl.data.partitions.importers import FLBENCH_EXPORT
from fedjax_pfl.results.accuracy_conventions import HEADLINES
from fedjax_pfl.utils import aliases, name_matching
from tests.docs import pages

NAMES = ("migrating.md", "pfllib.md", "flbench_flower.md")
PAGE = "".join((pages.ROOT / "docs" / name).read_text(encoding="utf-8") for name in NAMES)
ROWS = re.findall(r"^\| (`[^|]*) \| ([^|]*) \| ([^|]*)\|$", PAGE, re.MULTILINE)
FLAGS = [row for row in ROWS if not row[0].startswith("`--dataset=")]
# (PFLlib's flag, its default, the algorithm there, ours, the preset's value, our default)
SETTING_ROW = r"^\| `-(\w+) (\S+)` of (\S+) \| `(\w+\.\w+)` \| (\S*) ?\| (\S+) \| [^|]*\|$"
SETTINGS = re.findall(SETTING_ROW, PAGE, re.MULTILINE)
# Of system/main.py of TsingZ0/PFLlib at d832e76: what its algorithms that are here read.
MAIN = {
    "lam": 1, "mu": 0, "K": 5, "lrp": 0.01, "M": 5, "alk": 1, "sg": 1, "al": 1, "pls": 1,
    "tau": 1, "fte": 10, "dlr": 0, "L": 1, "slr": 1, "et": 1, "s": 80, "p": 2, "klw": 0, "mo": 0.1,
    "bt": 0, "nd": 512, "hd": 512, "glr": 0.005, "se": 1000, "Ts": 0.95, "Te": 0.98, "ca": 0.99,
    "fsb": 0,
}  # fmt: skip
# The same file's names of `-algo`.
ALGORITHMS = [
    "FedAvg", "Local", "FedMTL", "PerAvg", "pFedMe", "FedProx", "FedFomo", "FedAMP", "APFL",
    "FedPer", "Ditto", "FedRep", "FedPHP", "FedBN", "FedROD", "FedProto", "FedDyn", "MOON",
    "FedBABU", "APPLE", "FedGen", "SCAFFOLD", "FD", "FedALA", "FedPAC", "LG-FedAvg", "FedGC",
    "FML", "FedKD", "FedPCL", "FedCP", "GPFL", "FedNTD", "FedGH", "FedDBE", "FedCAC", "PFL-DA",
    "FedLC", "FedAS", "FedCross",
]  # fmt: skip


def names(cell):
    return [name.lstrip("-") for name in re.findall(r"`([^`]+)`", cell)]


@pytest.fixture(scope="module")
def known():
    return flags.parse(["run"])


@pytest.mark.parametrize("row", FLAGS, ids=lambda row: row[0])
def test_flags_are_answered_as_the_page_says(row, known):
    """By the nearest flag of ours, or by what makes one needless; our own names are flags here."""
    theirs, ours, why = row
    for name in names(theirs):
        said = unknown_flags.hint(name, known)
        if ours.strip():
            assert any(f"--{one} " in f"{said} " for one in names(ours)), (name, said)
        else:
            assert said.startswith("It is not needed here: "), (name, said, why)


def test_page_has_many_flags():
    assert len(FLAGS) > 40
    assert sum(len(names(row[0])) for row in FLAGS) > 70


def test_every_default_of_pfllib_has_its_row():
    """With its value there, the preset's and the class's."""
    assert {flag for flag, *_ in SETTINGS} == MAIN.keys()
    assert len(re.findall(r"^\| `-\w+ \S+` of ", PAGE, re.MULTILINE)) == len(SETTINGS)
    names = f"--algorithms={','.join(sorted(pfl.core.ALGORITHMS))}"
    every = flags.parse(["run", "--preset=pfllib", names])
    preset = dict(word.split("=") for word in every.set)
    for flag, default, theirs, ours, value, own in SETTINGS:
        name, _, key = ours.partition(".")
        assert pfl.core.algorithm_name(theirs) == name
        assert float(default) == MAIN[flag], flag
        assert preset.get(ours, "") == value, ours
        assert float(own) == vars(pfl.make_algorithm(name))[key], ours


def test_every_algorithm_of_pfllib_has_its_row():
    """With our name, which its own name is accepted for, or the sentence that refuses it."""
    _, _, table = PAGE.partition("\nAll of PFLlib's algorithms are here")
    row = r"^\| (\S+) \| (?:`(\w+)` )?\| ([^|]*)\|$"
    found = re.findall(row, table.partition("\n## ")[0], re.M)
    assert [theirs for theirs, *_ in found] == sorted(ALGORITHMS, key=str.lower)
    assert len(found) == 40
    for theirs, ours, why in found:
        if ours:
            assert pfl.core.algorithm_name(theirs) == ours
        else:
            reason = aliases.REASONS[name_matching.normalized(theirs)]
            assert f"It is {why}".replace("`", "'").startswith(reason)
    assert [theirs for theirs, ours, _ in found if not ours] == ["FedPCL"]


@pytest.mark.costly
def test_settings_of_the_pfllib_preset():
    """Each of its algorithms takes its settings, and a later flag wins."""
    preset = ["run", "--preset=pfllib"]
    own = ["--algorithms=FedProx,Ditto,Local", "--set=FedProx.proximal_weight=0.1"]
    wanted = ["ditto.proximal_weight=0", "ditto.personal_epochs=1", "local.participants=sampled"]
    assert flags.parse([*preset, *own]).set == [*wanted, "fedprox.proximal_weight=0.1"]
    for name in pfl.core.ALGORITHMS:
        args = flags.parse([*preset, f"--algorithms={name}"])
        parse_algorithms(args.algorithms, args.set)


def test_headlines_are_named():
    assert set(re.findall(r"`--headline=(\w+)", PAGE)) == {"pfllib", "flbench", "flower", "final"}
    assert all(f"`{name}`" in PAGE or f"--headline={name}" in PAGE for name in HEADLINES)


def test_the_script_for_flbench_is_the_one_that_the_importer_names():
    (block,) = [b.text for b in pages.blocks(PAGE) if b.language == "python"]
    script = FLBENCH_EXPORT.format(folder="FL-bench/data/cifar10")
    assert ast.dump(ast.parse(block)) == ast.dump(ast.parse(script))


# Of main.py, and of dataset/utils/dataset_utils.py with generate_MNIST.py: batch_size / (1 -
# train_ratio) is the fewest samples of a client.
SETTING = {
    "dataset": "mnist", "model": "cnn", "num_clients": 20, "participation": 1.0, "rounds": 2000,
    "batch_size": 10, "learning_rate": 0.005, "local_epochs": 1, "drop_last": True,
    "partition": "dirichlet", "alpha": 0.1, "test_split": "pooled", "test_fraction": 1 - 0.75,
    "min_size": int(10 / (1 - 0.75)), "num_seeds": 1, "eval_every": 1, "headline": "pfllib",
    "momentum": 0.0, "weight_decay": 0.0, "learning_rate_decay": 1.0, "initializer": "torch",
}  # fmt: skip


def test_the_preset_is_pfllibs_setting():
    args = flags.parse(["run", "--preset=pfllib"])
    assert {name: getattr(args, name) for name in SETTING} == SETTING
