"""Pages of measured tables: which get one, the index, and no folders of a machine."""

import json

from tools import reproduced_pages

VERDICT = {"kendall_tau": 0.5, "rows": 3, "apart": 2, "pairs": 3, "within": 1, "compared": 2,
           "unexplained": 0}  # fmt: skip


def table(queue, name, states, **facts):
    folder = queue / name
    folder.mkdir(parents=True)
    (folder / "table.md").write_text("# T\n\nLooked in /home/me/data/mnist, see x.org/a/b. 3/4.\n")
    (folder / "table.csv").write_text("state\n" + "\n".join(states) + "\n")
    known = {"table": name.replace("-", "/"), "scale": "small", "reading": None}
    known |= {"title": f"{name}, Table 1: caption", "verdict": VERDICT}
    known |= {"tuned_for_agreement": ""} | facts
    (folder / "table.json").write_text(json.dumps(known))


def test_pages_and_index(tmp_path, capsys):
    queue, docs = tmp_path / "queue", tmp_path / "docs"
    table(queue, "waffle-1", ["measured", "data missing", "not in the paper"])
    told = {"reading": "paper", "verdict": VERDICT | {"compared": 0}, "tuned_for_agreement": "x"}
    table(queue, "feddwa-1", ["measured"], **told)
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
    feddwa, waffle = (line.partition("](")[2] for line in lines)
    assert feddwa == "feddwa-1.md) | small, paper | 1 of 1 | +0.50, tuned | 2 of 3 | - | - |"
    assert waffle == "waffle-1.md) | small | 1 of 2 | +0.50 | 2 of 3 | 1 of 2 | - |"


def test_superseded_rows_are_marked_until_they_are_measured_again(tmp_path):
    queue, docs = tmp_path / "queue", tmp_path / "docs"
    table(queue, "pfedla-1", ["measured"])
    heads = "EMNIST, 10 clients", "EMNIST, 100 clients (on mnist), small scale also with --rounds=1"
    rows = "| FedRep | 1 | 4 |\n| pFedMe | 2 | 5 |\n| pFedMe, w | 3 | 6 |\n"
    text = "# T\n\n## Verdict\n\n" + "\n".join(f"## {head}\n\n{rows}" for head in heads)
    text += "\n## CIFAR-10, 10 clients\n\n| FedRep | 7 | not run |\n"
    (queue / "pfedla-1" / "table.md").write_text(text)
    assert reproduced_pages.main(["", str(docs), str(queue)]) == 0
    plain, kept = (docs / "pfedla-1.md").read_text(), docs / "pfedla-1.json"
    old = [{"row": "FedRep", "since": "0.3"},
           {"row": "pFedMe", "since": "0.3", "columns": ["emnist_100"]}]  # fmt: skip
    kept.write_text(json.dumps(json.loads(kept.read_text()) | {"superseded": old}))
    for _ in range(2):  # marks no row twice
        assert reproduced_pages.main(["", str(docs)]) == 0
        page = (docs / "pfedla-1.md").read_text()
        assert page.count("superseded, 0.3") == 3 and page.count("marked as superseded") == 1
    first, second, third = page.split("## ")[2:]
    assert "| FedRep (superseded, 0.3) | 1 | 4 |" in first and "| pFedMe | 2 | 5 |" in first
    assert "| pFedMe (superseded, 0.3) | 2 |" in second and "| pFedMe, w | 3 | 6 |" in second
    assert "| FedRep | 7 | not run |" in third
    assert (docs / "README.md").read_text().splitlines()[-1].endswith("| 2 rows |")
    assert reproduced_pages.main(["", str(docs), str(queue)]) == 0
    assert (docs / "pfedla-1.md").read_text() == plain


def test_costs_are_counted_when_asked_for(tmp_path, monkeypatch):
    monkeypatch.setattr(reproduced_pages.paper_tables, "names", lambda *_: ["feddwa/6"])
    monkeypatch.setattr(reproduced_pages.full_cost, "training", lambda words: 2e6)
    assert reproduced_pages.main(["", str(tmp_path), "--costs"]) == 0
    assert (tmp_path / "costs.csv").read_text().splitlines()[1].startswith("feddwa/6,4,8,")
    last = (tmp_path / "README.md").read_text().splitlines()[-1]
    assert last.startswith("| `feddwa/6` | 4 | 8 | 20.2 | 0.3367 | 0.03317 |")


def test_kept_cells_stay_and_fewer_cells_replace_no_page(tmp_path, capsys):
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "waffle-1.json").write_text('{"kept": {"a/fedavg": {"run": "x"}}}')
    assert reproduced_pages.main(["", str(docs)]) == 0
    assert "waffle" not in (docs / "README.md").read_text(), "cells without a page"
    table(tmp_path / "two", "waffle-1", ["measured"] * 2)
    table(tmp_path / "one", "waffle-1", ["measured", "not run"])
    assert reproduced_pages.main(["", str(docs), str(tmp_path / "two")]) == 0
    facts = json.loads((docs / "waffle-1.json").read_text())
    assert facts["measured"] == 2 and facts["kept"] == {"a/fedavg": {"run": "x"}}
    assert reproduced_pages.main(["", str(docs), str(tmp_path / "one")]) == 0
    assert json.loads((docs / "waffle-1.json").read_text()) == facts
    assert "waffle-1 stays: it has 2 measured cells, the new one 1" in capsys.readouterr().out


def test_superseded_rows_are_listed_with_costs_and_command(tmp_path, monkeypatch, capsys):
    asked = []

    def training(words):
        asked.append(words)
        return None if "--preset=pfedla/table1_fashion_mnist_10" in words else 110 * 3600 / 2

    monkeypatch.setattr(reproduced_pages.full_cost, "training", training)
    old = [{"row": "FedRep", "since": "0.3"},
           {"row": "pFedMe", "since": "0.3", "columns": ["emnist_100"]}]  # fmt: skip
    facts = {"table": "pfedla/1", "scale": "medium", "reading": None, "superseded": old}
    (tmp_path / "pfedla-1-medium.json").write_text(json.dumps(facts))
    (tmp_path / "feddwa-1.json").write_text(json.dumps(facts | {"superseded": []}))
    before = {path: path.read_text() for path in tmp_path.iterdir()}
    assert reproduced_pages.main(["", str(tmp_path), "--superseded"]) == 0
    rep, me, command = capsys.readouterr().out.splitlines()
    assert me == "pfedla-1-medium: pFedMe: 1 runs, over 0.5 hours on two cores"
    assert rep.startswith("pfedla-1-medium: FedRep: 8 runs, over 3.5 hours on two cores, 1 of them")
    assert command.endswith(f"--scale=medium --rows=pfedme,fedrep --saved_cells={tmp_path}")
    assert "--rounds=40" in asked[0] and len(asked) == 9
    assert {path: path.read_text() for path in tmp_path.iterdir()} == before
