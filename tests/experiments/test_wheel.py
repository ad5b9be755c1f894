"""The wheel without a checkout: its files, and its commands in another folder."""

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

import experiments
from experiments.reproduction import paper_tables
from tests.experiments.small_runs import SMALL

ROOT = Path(experiments.__file__).parents[1]
PACKED = ("fedjax_pfl", "experiments")
COMMANDS = {"run", "sweep", "pretrain", "compare", "partition", "reproduce", "figures", "study"}
WORDS = (*SMALL, "--num_clients=3", "--devices=1")


def pip(*words):
    """Plays pip, quietly."""
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Made of a copy, in which nothing is left from another time."""
    copy, made = tmp_path_factory.mktemp("copy"), tmp_path_factory.mktemp("wheel")
    for name in ("setup.py", "setup.cfg", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    for name in (*PACKED, "tests", "tools"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, copy / name, ignore=ignored)
    pip("wheel", "--no-deps", "--no-build-isolation", f"--wheel-dir={made}", str(copy))
    (file,) = made.glob("*.whl")
    return file


@pytest.mark.costly
def test_files_of_the_wheel(wheel):
    """Every file of both packages, and nothing else that could hide a folder of the user's."""
    with zipfile.ZipFile(wheel) as content:
        result = {Path(name) for name in content.namelist()}
        (entries,) = (content.read(str(n)) for n in result if n.name == "entry_points.txt")
        metadata = next(n for n in result if n.name == "METADATA")
        wanted = content.read(str(metadata)).decode()
    mine = {path for path in result if not path.parts[0].endswith(".dist-info")}
    there = {
        path.relative_to(ROOT)
        for name in PACKED
        for path in (ROOT / name).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    named = {"experiments": "fedjax_pfl_experiments"}
    assert mine == {Path(named.get(p.parts[0], p.parts[0]), *p.parts[1:]) for p in there}
    commands = re.findall(r"^pfl-(\w+) = fedjax_pfl_experiments\.", entries.decode(), re.MULTILINE)
    assert sorted(commands) == sorted(COMMANDS)
    assert "Requires-Dist: jax" in wanted
    assert "Requires-Dist: torch" not in wanted.partition("Provides-Extra")[0]


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """The folder of commands of an environment that has the wheel, and what it needs from here."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, symlinks=os.name != "nt")
    python = folder / "bin" / "python"
    pip(f"--python={python}", "install", "--no-deps", "--no-index", str(wheel))
    (packages,) = folder.glob("lib/python*/site-packages")
    here = {Path(sysconfig.get_path(kind)) for kind in ("purelib", "platlib")}
    for path in (path for place in here for path in place.iterdir()):
        ours = path.name.startswith(("fedjax_pfl", "__editable__", "experiments"))
        if not (ours or path.suffix == ".pth" or (packages / path.name).exists()):
            (packages / path.name).symlink_to(path)
    return python.parent


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The user's folder, with a folder `experiments` that is importable but not a package."""
    folder = tmp_path_factory.mktemp("user")
    (folder / "experiments").mkdir()
    for name in ("run", "mine"):
        (folder / "experiments" / f"{name}.py").write_text("MINE = 'the user\\'s own'\n")
    return folder


@pytest.fixture
def call(installed, folder):
    """Plays an installed command there, and returns what it prints."""
    environment = {**os.environ, "PYTHONPATH": "."}

    def call(command, *words, code=0):
        done = subprocess.run([installed / command, *words], cwd=folder, env=environment,
                              capture_output=True, text=True, check=False)  # fmt: skip
        assert done.returncode == code, done.stdout + done.stderr
        assert "Traceback" not in done.stderr
        return done.stdout + done.stderr

    return call


SEES = (
    "import experiments.mine, fedjax_pfl, fedjax_pfl_experiments as ours; "
    "print(experiments.mine.MINE, fedjax_pfl.__file__, ours.__file__)"
)


@pytest.mark.costly
def test_commands_beside_a_folder_of_the_same_name(call, installed, folder):
    """Each once: with presets, tables and examples, which no checkout brings."""
    said = call("python", "-c", SEES)
    assert said.startswith("the user's own ")
    assert said.count(str(installed.parent)) == 2  # not the checkout's

    call("pfl-run", "--preset=digits_quick", "--algorithms=fedavg,local", *WORDS,
         "--output_dir=runs/a")  # fmt: skip
    config = json.loads((folder / "runs/a/fedavg/config.json").read_text())
    assert config["flags"]["rule"]["alpha"] == 0.1  # the preset's
    assert config["git"] is None
    said = call("pfl-run", "--preset=digits_quik", code=2)
    assert said == ("error: Unknown preset 'digits_quik'. Did you mean 'digits_quick'? "
                    "pfl-run --list shows them.\n")  # fmt: skip
    said = call("pfl-run", "--list")
    assert "feddwa/    table1_" in said and "kept_average" in said

    call("pfl-run", "--import_file=example:kept_average", "--algorithms=kept_average", *WORDS,
         "--output_dir=runs/b")  # fmt: skip
    said = call("pfl-compare", "--runs=runs/a,runs/b")
    assert "kept_average" in said and "fedavg" in said
    call("pfl-figures", "accuracy/rounds", "--runs=runs/a", "--output=accuracy.png")
    assert (folder / "accuracy.png").stat().st_size > 1000
    call("pfl-partition", "--dataset=digits", "--num_clients=3", "--output_dir=parts")
    assert (folder / "parts/partition.npz").exists()
    call("pfl-sweep", "--preset=digits_quick", "--algorithms=fedavg", *WORDS,
         "--grid=learning_rate=0.03,0.1", "--output_dir=swept")  # fmt: skip
    assert "fedavg" in (folder / "swept/sweep.md").read_text()
    said = call("pfl-reproduce", "--list")
    assert re.findall(r"^(\w+/\w+): ", said, re.MULTILINE) == paper_tables.names()
    said = call("pfl-reproduce", "--table=feddwa/1", "--columns=pathological_cifar10",
                "--data_dir=nowhere", "--output_dir=papers")  # fmt: skip
    assert "Table and runs: papers" in said and "'cifar10' was not found" in said


@pytest.mark.costly
def test_commands_beside_a_package_of_the_same_name(call, folder):
    """The module form of the command continues the command's run."""
    (folder / "experiments" / "__init__.py").write_text("NAME = __name__\n")
    assert call("python", "-c", SEES).startswith("the user's own ")
    for command in (["pfl-run"], ["python", "-m", "fedjax_pfl_experiments.run"]):
        said = call(*command, "--preset=digits_quick", "--algorithms=fedavg", *WORDS,
                    "--output_dir=runs/c")  # fmt: skip
    assert said.startswith("This run is finished.")
