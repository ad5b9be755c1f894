"""Presets of the papers' settings: each can be built, is whole, and is in the table as it is."""

import os
import re
from pathlib import Path

import numpy as np
import pytest

from experiments.cli import build, flags, presets
from experiments.reproduction import datasets
from fedjax_pfl.data.sources.source_registry import DATASETS, Source
from fedjax_pfl.models.kernels.forms import by_definition
from tools import settings_table

ROOT = Path(__file__).resolve().parents[2]
NAMES = [name for name in presets.complete_presets() if name.startswith(settings_table.PAPERS)]
# Samples of a class: enough for 100 clients where there are few classes, little to move.
MOST = {10: 700, 4: 2000, 200: 50}
# What a setting is made of: no preset leaves one of these to a default that may change.
ALWAYS = set(
    re.findall(
        r"\w+",
        "dataset input_scaling partition num_clients test_split model initializer rounds batch_size"
        " drop_last learning_rate momentum weight_decay participation num_seeds",
    )
)
WITH_NORM = ("mtfl_cnn", "resnet8", "dla", "pfedla_lenet_bn")


@pytest.fixture(autouse=True)
def in_the_root(monkeypatch):
    monkeypatch.chdir(ROOT)


@pytest.fixture(autouse=True)
def literal():
    """Convolutions by their definition: the same shapes, traced in half the time."""
    with by_definition():
        yield


@pytest.fixture
def small(monkeypatch):
    """Blank data sets of the right shapes and classes under the names of the real ones."""
    for name, kind in datasets.KINDS.items():

        def load(data_dir, max_tokens=32_000, max_length=200, name=name, kind=kind):
            assert (max_tokens, max_length) == (32_000, 200)
            most = MOST.get(len(kind.train), 200)
            return datasets.blank(name, most, most // 5)

        monkeypatch.setitem(DATASETS, name, Source("a stand-in", load))


def prepare(name, *words):
    return build.prepare(
        build.load_inputs(flags.parse(["run", f"--preset={name}", "--algorithms=fedavg", *words]))
    )


def some():
    """All presets; those of large networks and images that others stand for are slow."""
    heavy = re.compile(
        r"waffle/table1_cifar10_(a_|b|c)|table[236].*(tiny|cinic)|practical.*tiny|text"
    )
    return [
        pytest.param(name, marks=pytest.mark.slow if heavy.search(name) else ()) for name in NAMES
    ]


@pytest.mark.parametrize("name", some())
def test_presets_can_be_built(name, small):
    experiment = prepare(name)
    args, federation = experiment.config, experiment.federation
    assert federation.num_clients == args.num_clients
    assert federation.participation.cohort_size == round(args.participation * args.num_clients)
    assert (federation.training.augment is not None) == ("cifar10" in name and "waffle" in name)
    assert federation.schedule.shuffle == (not name.startswith("plga"))


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
    assert left <= {"test_fraction", "dominant_classes"} | (
        set() if starred else {"alice", "concept_shift"}
    )


def test_the_table_is_that_of_the_presets():
    path = Path("docs/settings.md")
    text = path.read_text(encoding="utf-8")
    remedy = "run: python -m tools.settings_table docs/settings.md"
    assert settings_table.filled(text) == text, remedy


def rows():
    """The column Here of the table by preset."""
    lines = (ROOT / "docs/settings.md").read_text(encoding="utf-8").splitlines()
    cells = [line.split(" | ") for line in lines if line.startswith("| Table") or "**" in line]
    return {row[1].split("**")[1]: row[-1].removesuffix(" |") for row in cells}


def mean(text):
    """The mean of "2,500" or of "1 to 3 (mean 2)"."""
    return int(re.findall(r"[\d,]+", text)[-1].replace(",", ""))


def test_counts_are_the_papers():
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


def real(name):
    folder = Path(os.environ.get("FEDJAX_PFL_DATA", ""))
    if not os.environ.get("FEDJAX_PFL_DATA") or not (folder / name).is_dir():
        pytest.skip(f"FEDJAX_PFL_DATA names no folder with {name}")
    return str(folder)


@pytest.mark.parametrize("name", [name for name in NAMES if "fashion_mnist" in name])
def test_fashion_mnist_as_published(name):
    experiment = prepare(name, f"--data_dir={real('fashion_mnist')}")
    preset = settings_table.read(name)
    assert experiment.partition.sizes().tolist() == [420] * preset.args.num_clients
    assert experiment.dataset.num_train == 60_000
    assert "85,822 parameters" in preset.paper
    assert experiment.federation.plan.num_parameters == 85_822


def test_ag_news_as_far_as_it_is_here():
    """Without train.csv the texts of test.csv are the pool."""
    experiment = prepare("cwfedavg/table1_practical_ag_news", f"--data_dir={real('ag_news')}")
    sizes = experiment.partition.sizes() + experiment.partition.sizes("test")
    assert sizes.sum() == len(experiment.dataset.labels)
    assert experiment.dataset.input_shape == (200,)


def test_files_without_marks():
    with pytest.raises(
        build.pfl.InputError, match="The file has no marks <!-- presets: feddwa -->"
    ):
        settings_table.filled("# Settings")
