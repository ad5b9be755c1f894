"""Pages of measured tables: which get one, the index, and no folders of a machine."""

import json

from tools import reproduced_pages

VERDICT = {"kendall_tau": 0.5, "rows": 3, "within": 1, "compared": 2, "unexplained": 0}


def table(queue, name, states, **facts):
    folder = queue / name
    folder.mkdir(parents=True)
    (folder / "table.md").write_text("# T\n\nLooked in /home/me/data/mnist, see x.org/a/b. 3/4.\n")
    (folder / "table.csv").write_text("state\n" + "\n".join(states) + "\n")
    known = {"table": name.replace("-", "/"), "scale": "small", "reading": None}
    known |= {"title": f"{name}, Table 1: caption", "verdict": VERDICT} | facts
    (folder / "table.json").write_text(json.dumps(known))


def test_pages_and_index(tmp_path, capsys):
    queue, docs = tmp_path / "queue", tmp_path / "docs"
    table(queue, "waffle-1", ["measured", "data missing", "not in the paper"])
    table(queue, "feddwa-1", ["measured"], reading="paper", verdict=VERDICT | {"compared": 0})
    table(queue, "pfedla-1", ["data missing"])
    table(tmp_path / "larger", "feddwa-1", ["measured"] * 2, scale="medium")
    (queue / "waffle-1" / "table.png").write_bytes(b"picture")
    assert reproduced_pages.main(["", str(docs), str(queue), str(tmp_path / "larger")]) == 0
    assert "feddwa-1, waffle-1" in capsys.readouterr().out
    names = {path.name for path in docs.iterdir()}
    assert names == {"README.md", "waffle-1.md", "waffle-1.json", "waffle-1.png",
                     "feddwa-1.md", "feddwa-1.json",
                     "feddwa-1-medium.md", "feddwa-1-medium.json"}  # fmt: skip
    page = (docs / "waffle-1.md").read_text()
    assert "/home" not in page and "DATA/mnist" in page and "x.org/a/b. 3/4." in page
    assert "](waffle-1.png)" in page
    lines = (docs / "README.md").read_text().splitlines()[-3:]
    assert lines.pop(1).startswith("| [feddwa-1, Table 1](feddwa-1-medium.md) | medium | 2 of 2 |")
    assert lines[0] == "| [feddwa-1, Table 1](feddwa-1.md) | small, paper | 1 of 1 | +0.50 | - |"
    assert lines[1] == "| [waffle-1, Table 1](waffle-1.md) | small | 1 of 2 | +0.50 | 1 of 2 |"


def test_costs_are_counted_when_asked_for(tmp_path, monkeypatch):
    monkeypatch.setattr(reproduced_pages.tables, "names", lambda *_: ["feddwa/6"])
    monkeypatch.setattr(reproduced_pages.full_cost, "training", lambda words: 2e6)
    assert reproduced_pages.main(["", str(tmp_path), "--costs"]) == 0
    assert (tmp_path / "costs.csv").read_text().splitlines()[1].startswith("feddwa/6,4,8,")
    last = (tmp_path / "README.md").read_text().splitlines()[-1]
    assert last.startswith("| `feddwa/6` | 4 | 8 | 20.2 | 0.3367 | 0.03317 |")
