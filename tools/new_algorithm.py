"""Creation of a new algorithm's files, and lists of all algorithms in pages.

`make new-algorithm NAME=fedx TITLE="Federated X"` writes a working skeleton (FedAvg with a partial
server step): the algorithm, its reference, test and page, and its lines in the lists. Every TODO in
them is for its author; `tests/docs` refuses those that are left. `make lists` rewrites the counts
and lists in the pages from the registry.
"""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TEMPLATES = Path(__file__).with_name("templates")
FILES = {
    "algorithm": "fedjax_pfl/algorithms/{name}.py",
    "reference": "tests/references/{name}.py",
    "test": "tests/algorithms/test_{name}.py",
    "page": "docs/algorithms/{name}.md",
}
SERVER_NEEDS = {
    "nothing": "nothing",
    "sums": "weighted sums of uploads, as secure aggregation gives them",
    "models": "single models, updates or their products",
}
# Where a line goes: file, the text that it stands before, the line.
LINES = (
    ("fedjax_pfl/algorithms/__init__.py", "from fedjax_pfl.algorithms.ifca",
     "from fedjax_pfl.algorithms.{name} import {klass}\n"),
    ("fedjax_pfl/algorithms/__init__.py", '    "FedAvg",\n', '    "{klass}",\n'),
    ("tests/algorithms/test_published_defaults.py", '    "fedavgm.',
     '    "{name}.server_rate": (0.5, "ours: TODO, the source of the default"),\n'),
    ("tests/algorithms/test_refusals.py", "        feddpa.max_weight ",
     "        {name}.server_rate\n"),
    ("docs/algorithms/README.md", "| `fedavgm` |",
     "| `{name}` | TODO | as `fedavg`, with a partial step | 1 / 1 | [{name}]({name}.md) |\n"),
    ("docs/api/registered/global.md", "::: fedjax_pfl.algorithms.FedAvgM",
     "::: fedjax_pfl.algorithms.{klass}\n\n"),
    ("mkdocs.yml", "              - fedavgm: algorithms/fedavgm.md",
     "              - {name}: algorithms/{name}.md\n"),
)  # fmt: skip


def create_files(root: Path, name: str, title: str) -> list[Path]:
    """Write the files of an algorithm and its lines in the lists; return the new files.

    Raises:
      ValueError: no name of an algorithm, or one that is taken.
    """
    if not re.fullmatch("[a-z][a-z0-9_]*", name):
        raise ValueError(f"NAME must be lower case letters, digits and _, got {name!r}.")
    made = {kind: root / path.format(name=name) for kind, path in FILES.items()}
    taken = [path for path in made.values() if path.exists()]
    if taken:
        raise ValueError(f"{taken[0].relative_to(root)} exists: NAME must be new.")
    for file, before, _ in LINES:
        if before not in (root / file).read_text(encoding="utf-8"):
            raise ValueError(f"{file} has no line {before.strip()!r} to put {name} before.")
    klass = "".join(part.capitalize() for part in name.split("_"))
    for kind, path in made.items():
        text = (TEMPLATES / f"{kind}.txt").read_text(encoding="utf-8")
        for mark, value in (("@NAME@", name), ("@CLASS@", klass), ("@TITLE@", title)):
            text = text.replace(mark, value)
        path.write_text(text, encoding="utf-8")
    for file, before, line in LINES:
        path = root / file
        text = path.read_text(encoding="utf-8")
        line = line.format(name=name, klass=klass)
        path.write_text(text.replace(before, line + before, 1), encoding="utf-8")
    return list(made.values())


def lists(root: Path) -> dict[Path, str]:
    """Return the text by path of pages that count or list algorithms."""
    import fedjax_pfl as pfl  # of the root that runs this

    every = sorted(pfl.core.ALGORITHMS.items())
    known = [pair for pair in every if pair[1].__module__.startswith("fedjax_pfl.")]
    total = str(len(known))
    comparison = (root / "docs/comparison.md").read_text(encoding="utf-8")
    _, _, unpersonalized = comparison.partition("These end with one global model:")
    personalized = len(known) - len(re.findall(r"`\w+`", unpersonalized))
    affine = ", ".join(f"`{name}`" for name, one in known if one.batch_norm == "affine_shared")
    seen = "".join(
        f"| {text} | {', '.join(f'`{name}`' for name, a in known if a.server_needs == kind)} |\n"
        for kind, text in SERVER_NEEDS.items()
    )
    made = [pfl.make_algorithm(name) for name, _ in known]
    told = "".join(
        f"| `{one.name}` | {', '.join(one.also_sent)} | {', '.join(one.unprotected)} |\n"
        for one in made
        if one.also_sent or one.unprotected
    )
    head = re.escape("| What | Algorithms |\n|---|---|\n")
    beside = "| Algorithm | Clients also send | Statistics without noise |\n|---|---|---|\n"
    beside = re.escape(beside)
    rules = (
        ("docs/conventions.md", rf"(?<={head})(\|.*\n)*", seen),
        ("docs/conventions.md", rf"(?<={beside})(\|.*\n)*", told),
        ("README.md", r"\d+(?= algorithms\b)", total),
        ("docs/index.md", r"\d+(?= algorithms\b)", total),
        ("docs/comparison.md", r"(?<=\| Personalized algorithms \| )\d+ of \d+",
         f"{personalized} of {total}"),
        ("docs/models.md", r'(?<=\| `"affine_shared"` \(the default of ).*?(?=\))', affine),
    )  # fmt: skip
    pages: dict[Path, str] = {}
    for file, pattern, new in rules:
        path = root / file
        text = pages.get(path) or path.read_text(encoding="utf-8")
        pages[path] = re.sub(pattern, new, text)
    return pages


def main(words: list[str]) -> int:
    if words == ["lists"]:
        for path, text in lists(ROOT).items():
            path.write_text(text, encoding="utf-8")
        return 0
    if len(words) != 2 or not all(words):
        print('usage: make new-algorithm NAME=fedx TITLE="Title of the paper"', file=sys.stderr)
        return 2
    try:
        made = create_files(ROOT, *words)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for command in (("ruff", "check", "--fix", "--quiet", "fedjax_pfl/algorithms"),
                    ("tools.new_algorithm", "lists")):  # fmt: skip
        subprocess.run([sys.executable, "-m", *command], cwd=ROOT, check=False)
    print(*(path.relative_to(ROOT) for path in made), sep="\n")
    print(f"Replace every TODO, then: make test-algorithm NAME={words[0]}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
