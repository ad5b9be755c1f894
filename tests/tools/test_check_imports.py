"""Imports that point upward, leave what is allowed, or close a cycle are found."""

import tomllib

import pytest

from tools import check_imports

LAYERS = {
    "house": {"layers": [["top"], ["left", "right"], ["ground"]], "only": {"top": ["left"]}},
    "garden": {
        "above": ["house"],
        "layers": [["__init__", "tree"]],
        "public": {"house": ["ground", "left.b", "right.__init__"]},
    },
}


def write(root, files):
    for name, text in files.items():
        path = root / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


RULES = {  # files by name, and what is said of them
    "downward": ({"house/top/a": "from house.left import b", "house/left/b": "import house.ground"},
                 ""),
    "upward": ({"house/ground": "from house import left", "house/left/__init__": ""},
               "house/ground.py:1: house.ground imports house.left: ground is not above left."),
    "in a function": (
        {"house/ground": "def f():\n    import house.left.b", "house/left/b": ""},
        "house/ground.py:2: house.ground imports house.left.b: ground is not above left."),
    "for types": (
        {"house/left": "if TYPE_CHECKING:\n    from house.right import R", "house/right": ""},
        "house/left.py:2: house.left imports house.right: left is not above right."),
    "only": ({"house/top": "import house.right", "house/right": ""},
             "house/top.py:1: house.top imports house.right: top may import only left."),
    "only, by a package": (
        {"house/top": "from house import b", "house/__init__": "from house.right import b",
         "house/right": ""},
        "house/top.py:1: house.top imports house.right: top may import only left."),
    "public name": (
        {"garden/tree": "from house.right import c", "house/right/__init__": "import house.b"}, ""),
    "module of a public package": (
        {"garden/tree": "from house.right.c import x", "house/right/c": ""},
        "garden/tree.py:1: garden.tree imports house.right.c: "
        "right.c is not among what garden may use of house."),
    "cycle": ({"house/left/a": "from . import b", "house/left/b": "from house.left.a import x"},
              "Cycle: house.left.a, house.left.b."),
    "cycle for types": (
        {"house/left/a": "from house.left import b",
         "house/left/b": "if TYPE_CHECKING:\n    from house.left.a import A"}, ""),
    "files of one name": (
        {"house/left/a": "", "house/right/a": "", "garden/a": "", "house/left/__init__": "",
         "house/right/__init__": ""},
        "Files of one name: house/left/a.py, house/right/a.py."),
    "public layer": ({"garden/tree": "import house.ground", "house/ground": ""}, ""),
    "public module": ({"garden/tree": "from house.left import b", "house/left/b": ""}, ""),
    "module whose name begins as a public one": (
        {"garden/tree": "from house.left.bell import x", "house/left/bell": ""},
        "garden/tree.py:1: garden.tree imports house.left.bell: "
        "left.bell is not among what garden may use of house."),
    "package above": (
        {"house/ground": "import garden.tree", "garden/tree": ""},
        "house/ground.py:1: house.ground imports garden.tree: house may not import garden."),
    "no layer": (
        {"house/attic": "import house.ground", "house/ground": ""},
        "house/attic.py:1: house.attic imports house.ground: "
        "house.attic is in no layer of layers.toml."),
}  # fmt: skip


@pytest.mark.parametrize("rule", RULES)
def test_violations(tmp_path, rule):
    files, said = RULES[rule]
    for package in ("house", "garden"):
        write(tmp_path, {f"{package}/__init__": ""})
    write(tmp_path, {f"{name.rpartition('/')[0]}/__init__": "" for name in files} | files)
    result = check_imports.violations(tmp_path, dict(LAYERS))
    assert [line for line in result if "__init__" not in line] == [said] * bool(said)


@pytest.mark.costly
def test_imports_of_this_project():
    layers = tomllib.loads(check_imports.LAYERS.read_text(encoding="utf-8"))
    assert check_imports.violations(check_imports.ROOT, layers) == []
