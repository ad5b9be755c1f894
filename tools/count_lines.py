"""Lines of code, docstrings, comments and blanks by package, and words of prose in the pages:
`python -m tools.count_lines [FOLDER]`.

Tables, code blocks, formulas, directives and the pages that tools write, of reproduced tables and
of the leaderboard, are not prose. With `--budget`, the command compares code and prose with
`budget.toml` instead, and ends with 1 where there is more.
"""

import ast
import re
import sys
import tomllib
from collections import Counter, defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PARTS = ("fedjax_pfl", "experiments", "tools", "tests")
KINDS = ("code", "docstring", "comment", "blank")


def lines(path: Path) -> Counter:
    """Count lines of a Python file by kind."""
    text = path.read_text(encoding="utf-8")
    kinds = ["code"] * len(text.splitlines())
    for i, line in enumerate(text.splitlines()):
        if not line.strip():
            kinds[i] = "blank"
        elif line.lstrip().startswith("#"):
            kinds[i] = "comment"
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if ast.get_docstring(node, clean=False) is not None and first is not None:
                for i in range(first.lineno - 1, first.end_lineno or first.lineno):
                    kinds[i] = "docstring"
    return Counter(kinds)


def by_package(root: Path) -> dict[str, Counter]:
    """Count lines of each part and its packages, such as "tests" and "tests/engine"."""
    found: dict[str, Counter] = defaultdict(Counter)
    for part in PARTS:
        for path in sorted((root / part).rglob("*.py")):
            folders = path.relative_to(root).parts[:-1][:2]
            counted = lines(path)
            found[part] += counted
            if len(folders) > 1:
                found["/".join(folders)] += counted
    return dict(sorted(found.items()))


def words(root: Path) -> int:
    """Count words of prose in the pages."""
    total = 0
    for path in [*root.glob("*.md"), *(root / "docs").rglob("*.md")]:
        if not {"reproduced", "leaderboard"} & {*path.parts}:
            text = path.read_text(encoding="utf-8")
            aside = r"```.*?```|\$\$.*?\$\$|\$[^$\n]+\$|<!--.*?-->"
            text = re.sub(aside, "", text, flags=re.DOTALL)
            kept = (line for line in text.splitlines() if not re.match(r" *(\||:::)", line))
            total += sum(len(line.split()) for line in kept)
    return total


def over_budget(root: Path, budget: dict[str, int]) -> list[str]:
    """Return a sentence for each room that has more lines, or words, than its budget."""
    found = {name: counted["code"] for name, counted in by_package(root).items()}
    found["prose"] = words(root)
    absent = sorted(found.keys() - budget.keys() - set(PARTS))
    sentences = [f"{name} has no budget" for name in absent]
    sentences += [
        f"{name} has {found[name]:,}, {found[name] - most:,} above its budget of {most:,}"
        for name, most in budget.items()
        if found.get(name, 0) > most
    ]
    return sentences


def main(folder: Path) -> None:
    print(f"{'':28}{'lines':>8}" + "".join(f"{kind:>11}" for kind in KINDS))
    for name, counted in by_package(folder).items():
        row = f"{name:28}{sum(counted.values()):8,}"
        print(row + "".join(f"{counted[kind]:11,}" for kind in KINDS))
    print(f"{'pages, words of prose':28}{words(folder):8,}")


def check_budget() -> None:
    budget = tomllib.loads((ROOT / "tools" / "budget.toml").read_text(encoding="utf-8"))
    sentences = over_budget(ROOT, budget)
    for sentence in sentences:
        print(f"error: {sentence}; see CONTRIBUTING.md, Budget of lines", file=sys.stderr)
    sys.exit(1 if sentences else 0)


if __name__ == "__main__":
    if sys.argv[1:] == ["--budget"]:
        check_budget()
    main(Path(sys.argv[1]) if sys.argv[1:] else ROOT)
