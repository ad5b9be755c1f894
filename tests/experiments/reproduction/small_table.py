"""Tables of a paper as files, and the command that reproduces one."""

import json

from experiments import reproduce

FACTS = {
    "paper": "Mine", "table": "Table 1", "caption": "digits", "score": "best",
    "average": "samples", "flags": ["--compilation_cache="],
    "small": ["--num_clients=3", "--rounds=2", "--num_seeds=2", "--model=softmax"],
}  # fmt: skip
NAN = float("nan")


def column(name, **facts):
    return {"name": name, "title": name, "preset": "digits_quick"} | facts


def row(title, algorithm, *paper, **facts):
    return {"title": title, "algorithm": algorithm, "paper": paper} | facts


def table_text(columns, rows, explain=(), **facts):
    """Return a table in TOML, as `experiments/tables` has them."""
    parts = [("", FACTS | facts)]
    for kind, entries in (("column", columns), ("row", rows), ("explain", explain)):
        parts += [(f"\n[[{kind}]]\n", entry) for entry in entries]
    text = ""
    for heading, entry in parts:
        lines = [f"{key} = {json.dumps(value)}\n" for key, value in entry.items()]
        text += heading + "".join(lines)
    return text.replace("NaN", "nan")


TABLE = table_text(
    [
        column("digits"),
        column("cifar", title="CIFAR-10", preset="pfedla/table1_cifar10_10", stand_in=True,
               small=["--train_samples=40", "--local_epochs=1"]),
    ],
    [
        row("Local", "local", 90, 50, std=[0.5, NAN]),
        row("DWA (1)", "feddwa", 91, 60, settings=["feddwa.top_k=1"]),
        row("DWA", "feddwa", 80, NAN),
        row("Nobody", "nobody", 99, 99),
    ],
    stand_in=["--input_scaling=half"], absent=["nobody"],
)  # fmt: skip


def write_table(folder, text=TABLE, name="mine/1"):
    """Write a table below a folder; return the folder."""
    path = folder / f"{name}.toml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return folder


def request(*words):
    """The request of a command for one table."""
    (one,) = reproduce.requests_of(*reproduce.parse(["reproduce", *words]))
    return one


def call(tables, folder, *words):
    own = ["--table=mine/1", f"--tables={tables}", f"--output_dir={folder}"]
    return reproduce.main(["reproduce", *own, *words])
