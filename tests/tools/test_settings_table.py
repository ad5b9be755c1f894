"""Presets of the papers' settings: each can be built, is whole, and is in the table as it is."""

import re

import numpy as np
import pytest

from experiments.cli import build, flags, presets
from experiments.reproduction import datasets
from fedjax_pfl.models.kernels.forms import by_definition
from fedjax_pfl.utils.errors import InputError
from tests.docs.pages import ROOT
from tools import settings_table

pytestmark = pytest.mark.usefixtures("in_the_root")

PAGES = ROOT / "docs/settings"
NAMES = [name for name in presets.complete_presets() if name.startswith(settings_table.PAPERS)]
# What a setting is made of: no preset leaves one of these to a default that may change.
ALWAYS = {
    "dataset", "input_scaling", "partition", "num_clients", "test_split", "model", "initializer",
    "rounds", "batch_size", "drop_last", "learning_rate", "momentum", "weight_decay",
    "participation", "num_seeds",
}  # fmt: skip
WITH_NORM = ("mtfl_cnn", "resnet8", "dla", "pfedla_lenet_bn")


@pytest.fixture(autouse=True)
def literal():
    """Convolutions by their definition: the same shapes, traced in half the time."""
    with by_definition():
        yield


@pytest.mark.costly
@pytest.mark.parametrize("name", NAMES)
def test_presets_can_be_built(name, blank_data_sets):
    config = flags.parse(["run", f"--preset={name}", "--algorithms=fedavg"])
    experiment = build.prepare(build.load_inputs(config))
    args, federation = experiment.config, experiment.federation
    assert federation.num_clients == args.num_clients
    assert federation.participation.cohort_size == round(args.participation * args.num_clients)
    assert (federation.training.augment is not None) == ("cifar10" in name and "waffle" in name)
    assert federation.schedule.shuffle == (not name.startswith("plga"))
    assert {*blank_data_sets} == {(32_000, 200)}


@pytest.mark.parametrize("name", NAMES)
def test_presets_are_whole(name):
    preset = settings_table.read(name)
    given = preset.flags()
    assert preset.title
    assert preset.paper
    assert not preset.args["algorithms"].present
    assert set(given) >= ALWAYS
    assert ("local_epochs" in given) != ("local_steps" in given)
    assert ("batch_norm" in given) == (preset.args.model in WITH_NORM)
    assert ("test_fraction" in given) == (preset.args.test_split != "official")
    # The partition's own options too, but for a number that the rule finds itself.
    own = set(build.pfl.data.rule_options(preset.args.partition))
    left = own - set(given) - {"samples_per_client", "train_samples", "test_samples"}
    starred = str(given.get("distribution", "")).endswith("*")
    free = set() if starred else {"alice", "concept_shift"}
    assert left <= {"test_fraction", "dominant_classes"} | free


@pytest.mark.costly
@pytest.mark.parametrize("paper", settings_table.PAPERS)
def test_table_is_that_of_the_presets(paper):
    text = (PAGES / f"{paper}.md").read_text(encoding="utf-8")
    remedy = "run: python -m tools.settings_table docs/settings"
    assert settings_table.filled(text, paper) == text, remedy


def rows():
    """The column Here of the tables by preset."""
    lines = "\n".join(path.read_text(encoding="utf-8") for path in PAGES.iterdir()).splitlines()
    cells = [line.split(" | ") for line in lines if line.startswith("| Table") or "**" in line]
    return {row[1].split("**")[1]: row[-1].removesuffix(" |") for row in cells}


def mean(text):
    """The mean of "2,500" or of "1 to 3 (mean 2)"."""
    return int(re.findall(r"[\d,]+", text)[-1].replace(",", ""))


@pytest.mark.costly
def test_counts_are_those_of_the_papers():
    got = rows()
    assert sorted(got) == NAMES
    for name in NAMES:
        paper = settings_table.read(name).paper
        said = re.search(r"([\d,]+)(?: \(512 units: [\d,]+\))? parameters", paper)
        assert said is None or f"; {said[1]} parameters" in got[name]
        sizes = re.search(r"([\d,]+) \+ ([\d,]+) samples", paper)
        if sizes:
            counted = [mean(text) for text in got[name].partition(" samples")[0].split(" + ")]
            wanted = [mean(size) for size in sizes.groups()]
            # SPFL prints rounded numbers; all others are met to the sample.
            rtol = 0.03 if name.startswith(("spfl", "plga")) else 0
            np.testing.assert_allclose(counted, wanted, rtol=rtol, err_msg=name)


@pytest.mark.parametrize("data", ["mnist", "emnist", "cifar10", "cifar100"])
def test_spfl_with_512_units_as_its_table_4_says(data):
    name = f"spfl/table1_iid_{data}"
    args = flags.parse(["run", f"--preset={name}", "--model_option=hidden=512"])
    count = settings_table.parameters(args, datasets.blank(args.dataset))
    assert f"(512 units: {count:,})" in settings_table.read(name).paper


def test_files_without_marks():
    with pytest.raises(InputError, match="The page has no marks <!-- presets: feddwa -->"):
        settings_table.filled("# Settings", "feddwa")
