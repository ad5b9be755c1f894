"""Kept cells: equal to the runs they come from, of the same identity only, added one by one."""

import pytest

import fedjax_pfl as pfl
from experiments import reproduce, run
from experiments.outputs.run_files import write_json
from experiments.reproduction import saved_cells
from experiments.reproduction.paper_tables import PaperTable
from experiments.reproduction.planning import Request
from tests.experiments.reproduction.small_table import column, row, table_text, write_table
from tests.experiments.small_runs import read_json

TABLE = table_text(
    [column("digits"), column("traffic", quantity="traffic", relative="fedavg")],
    [row("Local", "local", 90, 1), row("FedAvg", "fedavg", 80, 2)],
    flags=["--compilation_cache=", "--eval_every=1"],
)


class Counted:
    """Runs as ever, and counts them; a kill comes in the place of run number `killed`."""

    def __init__(self, killed=0):
        self.run, self.names, self.killed = run.run, [], killed

    def __call__(self, experiment, **more):
        self.names += experiment.config.algorithms
        return 130 if len(self.names) == self.killed else self.run(experiment, **more)


def call(folder, output, *words):
    own = ["--table=mine/1", f"--tables={folder / 'tables'}", f"--saved_cells={folder / 'kept'}"]
    return reproduce.main(["reproduce", *own, f"--output_dir={folder / output}", *words])


def numbers(folder, output):
    """The table as CSV and as a page."""
    return [(folder / output / f"table.{kind}").read_text() for kind in ("csv", "md")]


@pytest.mark.costly
def test_kept_cells(tmp_path, monkeypatch):
    write_table(tmp_path / "tables", TABLE)
    (tmp_path / "kept").mkdir()
    path = tmp_path / "kept" / "mine-1.json"
    others = {"table": "mine/1", "scale": "small", "reading": None, "superseded": []}
    others |= {"kept": {"gone/x": {"run": ""}}}
    write_json(path, others)

    first = Counted(killed=2)
    monkeypatch.setattr(run, "run", first)
    assert call(tmp_path, "one") == 130 and first.names == ["local", "fedavg"]
    cells = read_json(path)["kept"]
    assert set(cells) == {"gone/x", "digits/local", "traffic/local"}, "a kill loses one run"
    lines = path.read_text().splitlines()
    assert sum(line.startswith('    "') for line in lines) == 3, "a line for each cell"

    second = Counted()
    second.run = first.run
    monkeypatch.setattr(run, "run", second)
    assert call(tmp_path, "one", "--rows=local") == 0 and second.names == []
    assert call(tmp_path, "two") == 0 and second.names == ["fedavg"], "in another folder"
    facts = read_json(path)
    assert set(facts["kept"]) == set(cells) | {"digits/fedavg", "traffic/fedavg"}
    assert facts | {"kept": others["kept"]} == others, "the other facts stay"
    cell = facts["kept"]["digits/local"]
    result = pfl.Result.load(tmp_path / "one" / "digits_quick" / "local" / "local")
    scores = 100 * result.pooled()[:, 0].max(axis=1)
    assert list(cell["scores"].values()) == pytest.approx(scores.tolist(), abs=1e-4)
    assert list(cell["scores"]) == ["0", "1"] and cell["clients"] == [0, 1, 2]

    assert call(tmp_path, "three") == 0 and second.names == ["fedavg"]
    assert not (tmp_path / "three" / "digits_quick").exists()
    assert call(tmp_path, "one") == 0 and second.names == ["fedavg"]
    path.unlink()  # so that all cells of the next are runs
    whole = Counted()
    whole.run = second.run
    monkeypatch.setattr(run, "run", whole)
    assert call(tmp_path, "four") == 0 and whole.names == ["local", "fedavg"]
    assert numbers(tmp_path, "three") == numbers(tmp_path, "four") == numbers(tmp_path, "one")

    class Stop(Exception):
        pass

    def stop(experiment, **_):
        raise Stop(*experiment.config.algorithms)

    monkeypatch.setattr(run, "run", stop)
    with monkeypatch.context() as changed:
        changed.setattr(pfl.core.ALGORITHMS["fedavg"], "revision", 99)
        with pytest.raises(Stop, match="fedavg"):  # a row of another revision is none
            call(tmp_path, "five")
    with pytest.raises(Stop, match="local"):  # nor are those of other flags
        call(tmp_path, "six", "--learning_rate=0.3")


def test_saved_cells_of_another_reading(tmp_path):
    table = PaperTable("feddwa/1", "", "", "", "best", "samples", (), ())
    (tmp_path / "feddwa-1-medium.json").write_text('{"reading": "code"}')
    with pytest.raises(pfl.InputError, match="keeps cells of the reading code"):
        saved_cells.load(Request(table, "medium", (), tmp_path, saved=tmp_path))
    small = Request(table, "small", (), tmp_path, reading="code", saved=tmp_path)
    assert saved_cells.load(small)["reading"] == "code"
