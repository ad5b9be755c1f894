"""Every command of the pages is understood by the program it calls, and those in reach are run.

`tests/docs/pages.py` says how a page marks what it needs. What is left out here: commands that need
data (the same flags are built on stand-ins by `tests/tools/test_settings_table.py`), and
installing.
"""

import ast
import importlib
import re
from pathlib import Path

import absl.flags
import numpy as np
import pytest

import fedjax_pfl as pfl
from experiments import compare, partition, pretrain, reproduce, study
from experiments.cli import flags, unknown_flags
from experiments.figures import __main__ as figures
from fedjax_pfl.data.pfllib_files import PFLLIB_EXPORT
from fedjax_pfl.data.sources import source_registry
from tests.docs import pages
from tests.docs.programs import check
from tests.docs.test_migrating import NAMES as MIGRATING
from tools.benchmark import __main__ as benchmark

ROOT = pages.ROOT
# How many blocks of Python a page has that need nothing, and which test runs them.
RUN_BY = {
    "docs/api/round.md": (1, "test_your_own.py"),
    "docs/debugging.md": (4, "test_your_own.py"),
    "README.md": (1, "test_readme.py"),
    "docs/index.md": (1, "test_readme.py"),
    "docs/your_own.md": (11, "test_your_own.py"),
    "docs/your_algorithm.md": (9, "test_your_own.py"),
    "docs/partitions.md": (1, "test_commands.py"),
    "docs/migrating.md": (1, "test_migrating.py"),
    "docs/using_models.md": (7, "test_using_models.py"),
    "docs/data_sources.md": (1, "test_commands.py"),
    "docs/results.md": (1, "test_commands.py"),
    "docs/tasks.md": (3, "test_commands.py"),
    "docs/uploads.md": (5, "test_commands.py"),
    "docs/comparing.md": (1, "test_commands.py"),
    "docs/drift.md": (1, "test_commands.py"),
    "docs/running.md": (2, "test_commands.py"),
    "docs/models.md": (2, "test_commands.py"),
    "docs/pytorch.md": (5, "test_pytorch.py"),
}
# Flags that the pages speak of and that are other programs'.
FOREIGN = {
    "no-deps", "xla_cpu_multi_thread_eigen", "xla_cpu_use_fusion_emitters",
    "xla_gpu_deterministic_ops", "xla_gpu_enable_triton_gemm",
}  # fmt: skip


REFUSALS = (pfl.InputError, absl.flags.Error, AssertionError, KeyError, ValueError, SyntaxError)


def text_of(path):
    return path.read_text(encoding="utf-8")


every_page = pytest.mark.parametrize("path", pages.PAGES, ids=pages.name)


@pytest.fixture(autouse=True)
def in_the_root(monkeypatch):
    monkeypatch.chdir(ROOT)


@every_page
def test_commands_are_understood(path):
    for command in pages.commands(text_of(path)):
        check(command.words)


@every_page
def test_commands_within_the_text(path):
    for span in pages.spans(text_of(path)):
        if re.match(r"(python3? -m |make |pip |pfl-\w+ |\.ci/run)", span):
            (command,) = pages.commands(f"```bash\n{span}\n```\n")
            check(command.words)


@every_page
def test_blocks_say_what_they_are(path):
    """All text that looks like a command or Python is marked as such, so that it is run."""
    for block in pages.blocks(text_of(path)):
        assert block.language in (*pages.SHELLS, "python", "")
        if not block.language:
            assert not re.search(r"^(python|make|pip|import|from|\$)\b", block.text, re.MULTILINE)


@pytest.fixture(scope="module")
def known_flags():
    """Names of all flags of all scripts, without dashes."""
    values = [
        flags.parse(["run"], flags.distributed),
        benchmark.parse([""]),
        reproduce.parse([""])[0],
        compare.parse([""]),
        figures.parse([""])[1],
    ]
    values += [flags.parse([""], command.define) for command in (partition, pretrain, study)]
    names = {name for one in values for name in one} | {"flagfile", "preset", "grid", "rank_by"}
    return names | {f"no{name}" for name in names}


@every_page
def test_flags_within_the_text_exist(path, known_flags):
    for span in pages.spans(text_of(path)):
        for name in re.findall(r"(?<![\w-])--(\w[\w-]*)", span):
            theirs = path.name in MIGRATING and unknown_flags.hint(name, flags.parse(["run"]))
            assert name in known_flags | FOREIGN or theirs, span


def test_python_blocks_are_run_somewhere():
    counts = {pages.name(path): len(pages.python_blocks(text_of(path))) for path in pages.PAGES}
    assert {page: n for page, n in counts.items() if n} == {p: n for p, (n, _) in RUN_BY.items()}
    for page, (_, test) in RUN_BY.items():
        assert Path(page).name in (ROOT / "tests/docs" / test).read_text(encoding="utf-8")


@every_page
def test_python_blocks_compile_and_import_what_there_is(path):
    for block in pages.blocks(text_of(path)):
        if block.language != "python" or block.need == "torch":
            continue
        for node in ast.walk(ast.parse(block.text)):
            if isinstance(node, ast.Import | ast.ImportFrom):
                exec(compile(ast.Module([node], []), pages.name(path), "exec"), {})


def test_the_script_for_pfllib_is_the_one_that_the_importer_names():
    """`tests/data/partitions/test_importers.py` runs that one."""
    (block,) = pages.python_blocks(text_of(ROOT / "docs/partitions.md"))
    script = PFLLIB_EXPORT.format(folder="PFLlib/dataset/Cifar10")
    assert ast.dump(ast.parse(block)) == ast.dump(ast.parse(script))


def test_python_of_data_sources():
    x, y = np.zeros((6, 2, 2, 1), np.uint8), np.arange(6) % 3
    names = {"train_x": x, "train_y": y, "test_x": x[:3], "test_y": y[:3]}
    pages.run_python("docs/data_sources.md", names)
    dataset = source_registry.load_dataset("mine", my_option=4)
    assert (dataset.num_train, dataset.num_test, dataset.num_classes) == (6, 3, 3)


def test_python_of_models(capsys):
    pages.run_python("docs/models.md")
    assert capsys.readouterr().out.startswith("1 of 4 leaves given (4,096 of 4,810 numbers); drawn")


@pytest.mark.costly
def test_python_of_uploads():
    names: dict = {}
    for block in pages.python_blocks(text_of(ROOT / "docs/uploads.md")):
        exec(compile(block.replace("rounds=100", "rounds=2"), "uploads.md", "exec"), names)
        if block.startswith("result.epsilons"):
            assert 0 < names["result"].epsilons().max() <= 8
    weight = names["result"].scalars["attackers_weight"]
    assert weight.shape == (1, 1, 2) and (weight < 0.5).all()


@pytest.mark.costly
@pytest.mark.parametrize(
    ("page", "printed"),
    [
        ("running.md", r"^(patience \d+ of 30| 30 of None)$[\s\S]*0\.03\n\Z"),
        ("comparing.md", r"\A\(2, 10\) Estimate\(value="),
        ("drift.md", "rounds_to_recover"),
        ("results.md", "top_k"),
    ],
)
def test_python_of_a_page(page, printed, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    pages.run_python(f"docs/{page}")
    assert re.search(printed, capsys.readouterr().out, re.MULTILINE)


@pytest.mark.costly
def test_python_of_tasks(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    pages.run_python("docs/tasks.md")
    assert "Top2 %" in capsys.readouterr().out
    assert pfl.load_dataset("npz:targets.npz", task="regression").num_outputs == 1


def short(words):
    """The same `experiments.run` with one seed, no more rounds than its matrices need, and a small
    network where it names none."""
    args = flags.parse(["run", *words])
    rounds = max(map(int, args.matrix_rounds)) if args.matrix_rounds else min(args.rounds, 4)
    small = [] if args["model"].present else ["--model=mlp"]
    return [*words, *small, f"--rounds={rounds}", "--num_seeds=1", "--compilation_cache="]


def test_demo_is_the_command_of_the_readme():
    """Apart from the flags of a shorter one."""
    given = pages.commands(text_of(ROOT / "README.md"))
    (words,) = [c.words for c in given if "experiments.run" in c.words]
    makefile = text_of(ROOT / "Makefile")
    recipe = makefile.partition("\ndemo:")[2].partition("\n\n")[0]
    assert words[0] == ".venv/bin/python" and " ".join(words[1:]) in recipe


def main_of(script):
    folders = ("experiments.figures", "tools.benchmark")
    module = f"{script}.__main__" if script in folders else script
    return importlib.import_module(module).main


@pytest.mark.costly
@every_page
def test_commands_run(path, tmp_path, monkeypatch, capsys):
    """One after the other in an empty folder, runs in short, and all end well."""
    needless = [command for command in pages.commands(text_of(path)) if not command.need]
    given = [command.words[2:] for command in needless if command.words[1:2] == ("-m",)]
    monkeypatch.chdir(tmp_path)
    x, y = np.random.default_rng(0).random((200, 12), np.float32), np.arange(200) % 4
    np.savez("mine.npz", x_train=x, y_train=y)  # as docs/your_own.md makes it
    np.savez("targets.npz", x_train=x, y_train=x[:, 0])  # as docs/tasks.md does
    np.savez("hospitals.npz", x_train=x, y_train=y, hospital_train=y)
    for script, *words in given:
        if script in ("experiments.run", "experiments.sweep"):
            own = [word for word in words if not re.match("--(grid|rank_by)", word)]
            words = [*words, *short(own)[len(own) :]]
        assert main_of(script)([script, *words]) == 0, f"{words}: {capsys.readouterr().err}"
        for word in words:
            if re.match("--(output|data)=", word):
                assert Path(word.partition("=")[2]).stat().st_size > 100


def test_wrong_commands_are_noticed():
    """The helpers find commands and their flags."""
    page = (
        "# A\n\n<!-- needs: data -->\n```bash\nR='python -m experiments.run'\nfor k in 1 2; do\n"
        "  $R --set=feddwa.top_k=$k \\\n    --rounds=2\ndone\n```\n`x --y`\n```\n`z`\n```\n"
    )
    words = ("python", "-m", "experiments.run", "--set=feddwa.top_k=1", "--rounds=2")
    first, second = pages.commands(page)
    assert first == (words, "data")
    assert second.words[3] == "--set=feddwa.top_k=2"
    assert pages.spans(page) == ["x --y"]
    for wrong in ("rm -r x", "python -m 'a", "false", "/bin/ls", "echo x > y"):
        with pytest.raises(ValueError):
            pages.commands(f"```bash\n{wrong}\n```\n")
    for mark in ("<!-- needs: luck -->\n```bash\n```\n", "<!-- needs: data -->\n\n```bash\n```\n"):
        with pytest.raises(ValueError, match="marks are one of"):
            pages.blocks(mark)
    for wrong in (
        "make tset",
        ".ci/runs",
        "pip install -e .[none]",
        "pip install polars",
        "python -m experiments.none",
        "python -m pytest tests/none -k x",
        "python -m tools.settings_table docs/none.md",
        "python -m experiments.run --none=1",
        "python -m experiments.run --algorithms=fedavg --set=fedavg.none=1",
        "python -m experiments.sweep --algorithms=feddwa --grid=feddwa.top_k=0",
        "python -m experiments.compare --runs=a --score=none",
        "python -m experiments.figures matrices/rounds --top_k=3 --runs=a",
        "python -m experiments.partition --alphas=x",
    ):
        with pytest.raises(REFUSALS):
            (command,) = pages.commands(f"```bash\n{wrong}\n```\n")
            check(command.words)
