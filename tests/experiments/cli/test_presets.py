"""Presets and examples by name: the same flags wherever one stands, and no others."""

import re
from pathlib import Path

import pytest

import experiments
import fedjax_pfl as pfl
from experiments import run, sweep
from experiments.cli import flags, identity, presets

ROOT = Path(experiments.__file__).parents[1]
NESTED = "cwfedavg/table2_clients_100"  # a preset that includes one that includes parts


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def parsed(*words):
    return flags.parse(["run", *words])


@pytest.mark.costly
def test_every_preset_is_the_same_from_anywhere(monkeypatch):
    assert len(presets.complete_presets()) > 80
    for name in set(presets.names()) - set(presets.studies()):
        named = parsed(f"--preset={name}")
        file = parsed(f"--flagfile={ROOT}/experiments/presets/{name}.flags")
        assert named.by_group() == file.by_group()
        assert identity.run_identity(named) == identity.run_identity(file)
    monkeypatch.chdir(ROOT)
    here = parsed(f"--flagfile=experiments/presets/{NESTED}.flags")
    monkeypatch.chdir("/")
    there = parsed(f"--preset={NESTED}")
    assert here.by_group() == there.by_group()
    assert (there.num_clients, there.dataset) == (100, "cifar100")  # its own, and a part's


def test_where_a_preset_may_stand(tmp_path):
    (tmp_path / "mine.flags").write_text("--rounds=7\n--preset=digits_quick\n--num_seeds=2\n")
    own = parsed("--flagfile=mine.flags")
    assert (own.rounds, own.num_seeds, own.num_clients) == (50, 2, 20)
    for words in (
        ["--preset=digits_quick", "--rounds=7"],
        ["--preset", "digits_quick", "--rounds=7"],
        ["-preset=digits_quick", "--rounds=7"],
    ):
        args = parsed(*words)
        assert (args.rounds, args.num_seeds) == (7, 3)  # what is given later wins
        typed = ["--rounds=7", "--num_seeds=3", "--algorithms=local,fedavg,fedavg_ft,feddwa"]
        assert identity.run_identity(args) == identity.run_identity(parsed("--alpha=0.1", *typed))


def test_typed_options_of_training_win_over_a_presets_own(tmp_path):
    """Over an algorithm's own in the preset, and epochs over the preset's steps."""
    preset = "--preset=digits_groups"
    assert parsed(preset).training_of["spfl"] == {"learning_rate": 0.2}
    args = parsed(preset, "--learning_rate=0.7", "--set=local.learning_rate=0.2")
    assert args.training_of["spfl"] == {} and args.instances["spfl"].gamma == 20
    assert args.training_of["local"] == {"learning_rate": 0.2}
    for word, left in (("learning_rate=0.1,1", set()), ("feddwa.learning_rate=0.1,1", {"local"})):
        args = flags.parse(["sweep", preset, f"--grid={word}"], sweep.define)
        own = {name for name, values in args.training_of.items() if values}
        assert "feddwa" not in own and left <= own and ("local" in own) == bool(left)
    (tmp_path / "steps.flags").write_text("--local_steps=8\n")
    file = f"--flagfile={tmp_path / 'steps.flags'}"
    assert parsed(file).local_steps == parsed(file, "--batch_size=5").local_steps == 8
    assert parsed(file, "--local_epochs=2").local_steps is None
    (tmp_path / "own.flags").write_text("--set=feddwa.local_steps=8\n")
    file_of_set = f"--flagfile={tmp_path / 'own.flags'}"
    assert parsed(file_of_set, "--local_epochs=2").training_of["feddwa"] == {}
    (tmp_path / "epochs.flags").write_text("--local_epochs=8\n")
    assert parsed(f"--flagfile={tmp_path / 'epochs.flags'}", "--local_steps=2").local_epochs == 1
    with pytest.raises(pfl.InputError, match="--local_epochs and --local_steps can't both be giv"):
        parsed(file, "--local_epochs=2", "--local_steps=3")


@pytest.mark.parametrize(
    "name",
    ["feddwa/table1_practical1_cifar1", "feddwa/table1_practical1_cifar10.flags",
     "../presets/digits_quick", "", "digits_quik", "parts", "/etc/passwd"],
)  # fmt: skip
def test_unknown_presets(tmp_path, name, capsys):
    near = {"d": "digits_quick", "f": "feddwa/table1_practical1_cifar10"}.get(name[:1])
    (tmp_path / "mine.flags").write_text(f"--preset={name}\n")
    for word in (f"--preset={name}", "--flagfile=mine.flags"):
        assert run.main(["run", word]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith(f"error: Unknown preset {name!r}.")
        assert line.endswith("python -m experiments.run --list shows them.")
        assert len(line) < 200
        assert near is None or f"Did you mean {near!r}?" in line
    assert list(tmp_path.iterdir()) == [tmp_path / "mine.flags"]


def test_a_preset_without_its_name(tmp_path, capsys):
    (tmp_path / "mine.flags").write_text("--preset\ndigits_quick\n")
    for words in (["--preset"], ["--flagfile=mine.flags"]):
        assert run.main(["run", *words]) == 2
        assert capsys.readouterr().err.startswith("error: Unknown preset ''.")


def test_the_list_names_all_but_parts(capsys):
    assert run.main(["run", "--list"]) == 0
    shown = capsys.readouterr().out.partition("\nPresets (--preset=NAME):\n")[2]
    shown, _, examples = shown.partition("\nExamples ")
    found, folder = [], ""
    for line in shown.strip("\n").splitlines():
        folder = line[:13].strip() or (folder if found else "")
        found += [folder + name for name in re.findall(r"[\w.]+", line[13:])]
    assert found == presets.complete_presets()
    assert {"kept_average", "sensor_network"} <= {*re.findall(r"\w+", examples)}
    assert str(ROOT / "experiments/examples") in examples


def test_an_example_by_name(capsys):
    example = ROOT / "experiments/examples/kept_average.py"
    named = parsed("--import_file=example:kept_average", "--algorithms=kept_average")
    file = parsed(f"--import_file={example}", "--algorithms=kept_average")
    assert "kept_average" in pfl.core.ALGORITHMS
    assert identity.run_identity(named) == identity.run_identity(file)
    assert run.main(["run", "--import_file=example:kept_averag"]) == 2
    text = capsys.readouterr().err
    assert "Unknown example 'kept_averag'. Did you mean 'kept_average'?" in text
