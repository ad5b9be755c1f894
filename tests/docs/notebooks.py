"""The cells of the notebooks, run one after the other."""

import ast
import json
from collections.abc import Mapping
from pathlib import Path


def cells(path: Path) -> list[dict]:
    return json.loads(path.read_text(encoding="utf-8"))["cells"]


def code(path: Path) -> dict[str, str]:
    """Return the text of the code cells by their ids."""
    return {c["id"]: "".join(c["source"]) for c in cells(path) if c["cell_type"] == "code"}


def run(path: Path, smaller: Mapping[str, str]) -> tuple[dict, dict]:
    """Run all code cells with words replaced; return (the names, what each cell ends with)."""
    names, shown = {"__name__": path.stem}, {}
    for old in smaller:
        assert any(old in text for text in code(path).values()), old
    for cell, text in code(path).items():
        for old, new in smaller.items():
            text = text.replace(old, new)
        shown[cell] = run_cell(cell, text, names)
    return names, shown


def run_cell(cell: str, text: str, names: dict) -> object:
    """Run a cell; return the value that it ends with, or None."""
    tree = ast.parse(text)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, cell, "exec"), names)
    if last is not None:
        return eval(compile(ast.Expression(last.value), cell, "eval"), names)
    return None
