"""Scripts with algorithms from the user's own files."""

import json
import sys
from pathlib import Path

import pytest

import fedjax_pfl as pfl
from experiments import reproduce, run, sweep
from experiments.cli import flags, identity, plugins
from fedjax_pfl.testing.suite import check_algorithm
from tests.experiments.stopped_runs import default_folder

ROOT = Path(__file__).resolve().parents[3]
EXAMPLE = ROOT / "experiments/examples/kept_average.py"


@pytest.mark.costly
@pytest.mark.parametrize("check", ["partial_participation", "permutation"])
def test_the_example_passes_the_suite(check):
    plugins.load([str(EXAMPLE)])
    check_algorithm(pfl.make_algorithm("kept_average"), only=check)


def test_check_algorithm_with_an_unknown_check():
    with pytest.raises(pfl.InputError, match=r"Unknown check 'permutations'\. Did you mean"):
        check_algorithm(pfl.make_algorithm("local"), only="permutations")


def test_import_file_is_part_of_the_identity(tmp_path, own_code_is_forgotten):
    file = tmp_path / "mine.py"
    file.write_text("RATE = 1\n")
    words = ["run", f"--import_file={file}"]
    before = identity.run_identity(flags.parse(words))
    folder = default_folder(words)
    file.write_text("RATE = 2\n")
    assert identity.run_identity(flags.parse(words)) == before  # which runs in this process
    own_code_is_forgotten()
    now = identity.run_identity(flags.parse(words))
    assert {name for name in now if now[name] != before[name]} == {"import_file"}
    assert default_folder(words) != folder
    json.dumps(now)
    assert "import_file" not in identity.run_identity(flags.parse(["run"]))
    moved = tmp_path / "elsewhere" / "mine.py"
    moved.parent.mkdir()
    moved.write_text("RATE = 2\n")
    assert identity.run_identity(flags.parse(["run", f"--import_file={moved}"])) == now


@pytest.fixture
def neighbours(tmp_path):
    """A file that imports a neighbour, a package and, late, another neighbour; all are tiny."""
    texts = {
        "mine.py": "import near\nimport parts.one\n\ndef late():\n    import later\n"
        "    return later.NAME\n",
        "near.py": "NAME = 'near'\n",
        "later.py": "NAME = 'later'\n",
        "parts/__init__.py": "",
        "parts/one.py": "from . import two\nimport importlib\n"
        "importlib.import_module('un' + 'named')\n",
        "parts/two.py": "",
        "unnamed.py": "",
        "alien.py": "",  # nobody imports it
    }
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_imported_neighbours_are_part_of_the_identity(neighbours, own_code_is_forgotten):
    def found():
        own_code_is_forgotten()
        args = flags.parse(["run", f"--import_file={neighbours / 'mine.py'}"])
        return identity.run_identity(args)["import_file"]

    before = found()
    (own,) = [module for name, module in sys.modules.items() if name.startswith("own_code_")]
    assert own.late() == "later"
    names = [line.partition(" ")[0] for line in before]
    theirs = ["later.py", "near.py", "parts/__init__.py", "parts/one.py", "parts/two.py"]
    assert names == ["mine.py", *theirs, "unnamed.py"]
    for name in ("near.py", "later.py", "parts/two.py", "unnamed.py"):
        with (neighbours / name).open("a") as file:
            file.write("MORE = 1\n")
        now = found()
        assert [line.partition(" ")[0] for line in set(now) - set(before)] == [name]
        before = now
    (neighbours / "alien.py").write_text("MORE = 1\n")
    assert found() == before


def test_neighbour_whose_name_is_taken(neighbours, tmp_path):
    plugins.load([str(neighbours / "mine.py")])
    other = tmp_path / "other"
    other.mkdir()
    (other / "near.py").write_text("NAME = 'other'\n")
    (other / "second.py").write_text("import near\n")
    with pytest.raises(pfl.InputError, match=r"imports near from .*other/near\.py, but .*rename"):
        plugins.load([str(other / "second.py")])


def test_an_error_in_a_neighbour_names_its_line(neighbours):
    (neighbours / "near.py").write_text("x = 1\ny = x / 0\n")
    with pytest.raises(pfl.InputError, match=r"ZeroDivisionError in line 2 of near\.py: division"):
        plugins.load([str(neighbours / "mine.py")])
    (neighbours / "near.py").write_text("x = 1\n")
    plugins.load([str(neighbours / "mine.py")])  # nothing of the failure is left


def test_digests_of_an_algorithms_files(tmp_path):
    text = "from fedjax_pfl.core import ALGORITHMS, algorithm\n\n@algorithm('{0}')\n"
    text += "class Own(ALGORITHMS['fedavg']):\n    pass\n"
    for name in ("one", "two"):
        (tmp_path / f"{name}.py").write_text(text.format(name))
    (tmp_path / "plain.py").write_text("")
    files = [str(tmp_path / f"{name}.py") for name in ("one", "two", "plain")]

    def names(algorithm):
        return [line.partition(" ")[0] for line in plugins.digests(files, algorithm)]

    assert names(None) == ["one.py", "two.py", "plain.py"]
    assert names("two") == ["two.py", "plain.py"]
    assert names("fedavg") == ["plain.py"]


@pytest.fixture
def strangers(tmp_path, monkeypatch):
    """Words that read a preset which wants to run a file; the file leaves a mark where it does."""
    monkeypatch.chdir(tmp_path)
    Path("evil.py").write_text("open('ran', 'w').close()\n")
    forms = {
        "same": "--import_file=evil.py",
        "dash": "# a comment\n-import_file=evil.py",
        "two": "--import_file\nevil.py",
        "more": "--import_file=evil.py\n--trust_flagfiles",
        "nested": "--rounds=2\n--flagfile=same.flags",
    }
    for name, text in forms.items():
        Path(f"{name}.flags").write_text(f"{text}\n")
    words = [[f"--flagfile={name}.flags"] for name in forms]
    return [*words, ["--flagfile", "same.flags"], ["-flagfile=same.flags", "--notrust_flagfiles"]]


def test_a_flagfile_runs_no_code(strangers, capsys):
    own = f"--import_file={EXAMPLE}"  # its code may run, and that does not vouch for the others
    for words in strangers:
        for more in ([], [own]):
            assert run.main(["run", *more, *words]) == 2
            text = capsys.readouterr().err
            assert "A --flagfile has " in text and "--trust_flagfiles" in text
            assert text.count("\n") == 1
        assert sweep.main(["sweep", "--grid=batch_size=1,2", *words]) == 2
        assert "A --flagfile has " in capsys.readouterr().err
        assert reproduce.main(["reproduce", "--table=feddwa/1", *words]) == 2
        assert "A --flagfile has " in capsys.readouterr().err
    assert not Path("ran").exists()


def test_a_flagfile_names_no_folder_of_compiled_programs(strangers, capsys):
    Path("cache.flags").write_text("--compilation_cache=evil\n")
    assert run.main(["run", "--flagfile=cache.flags"]) == 2
    assert "A --flagfile has --compilation_cache=evil" in capsys.readouterr().err
    assert flags.parse(["run", "--flagfile=cache.flags", "--trust_flagfiles"]).compilation_cache
    Path("cache.flags").write_text("--compilation_cache=\n")  # none
    assert not flags.parse(["run", "--flagfile=cache.flags"]).compilation_cache


def test_a_flagfile_that_is_trusted(strangers):
    for words in strangers[:-1]:
        assert flags.parse(["run", *words, "--trust_flagfiles"]).import_file == ["evil.py"]
    assert Path("ran").exists()
    before = identity.run_identity(flags.parse(["run", "--import_file=evil.py", "--rounds=2"]))
    now = identity.run_identity(flags.parse(["run", *strangers[4], "--trust_flagfiles"]))
    assert now == before


def test_a_table_runs_no_code(strangers, capsys):
    Path("tables/mine").mkdir(parents=True)
    text = (ROOT / "experiments/tables/feddwa/1.toml").read_text()
    (tmp := Path("experiments")).symlink_to(ROOT / "experiments")
    filled = text.replace("[[column]]\n", "[[column]]\nvalues = {x = 'import'}\n")
    for table, given, word in (
        (text, "--import_file=evil.py", "--import_file=evil.py"),
        (filled, "--{x}_file=evil.py", "--import_file=evil.py"),
        (text, "--trust_flagfiles", "--trust_flagfiles"),
        (text, "--compilation_cache=evil", "--compilation_cache=evil"),
    ):
        Path("tables/mine/1.toml").write_text(
            table.replace("small = [", f'small = ["{given}", ', 1)
        )
        assert reproduce.main(["reproduce", "--table=mine/1", "--tables=tables"]) == 2
        assert f"its flags have {word}, and a table runs no code" in capsys.readouterr().err
    assert not Path("ran").exists() and tmp.is_symlink()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("none.py", None, "none.py: there is no such file."),
        ("text.txt", "x = 1", "must be a Python file"),
        ("wrong.py", "x = (", "does not run: SyntaxError"),
        ("fails.py", "x = 1\nimport nowhere", "does not run: ModuleNotFoundError in line 2:"),
        ("ends.py", "import sys\nsys.exit()", "does not run: SystemExit in line 2: it ends the"),
    ],
)
def test_import_file_refused(name, content, message, tmp_path, capsys):
    if content is not None:
        (tmp_path / name).write_text(content)
    assert run.main(["run", f"--import_file={tmp_path / name}"]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error
