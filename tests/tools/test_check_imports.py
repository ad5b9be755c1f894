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


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"house/top/a": "from house.left import b", "house/left/b": "import house.ground"}, []),
        (
            {"house/ground": "from house import left", "house/left/__init__": ""},
            ["house/ground.py:1: house.ground imports house.left: ground is not above left."],
        ),
        (
            {"house/ground": "def f():\n    import house.left.b", "house/left/b": ""},
            ["house/ground.py:2: house.ground imports house.left.b: ground is not above left."],
        ),
        (
            {"house/left": "if TYPE_CHECKING:\n    from house.right import R", "house/right": ""},
            ["house/left.py:2: house.left imports house.right: left is not above right."],
        ),
        (
            {"house/top": "import house.right", "house/right": ""},
            ["house/top.py:1: house.top imports house.right: top may import only left."],
        ),
        (
            {
                "house/top": "from house import b",
                "house/__init__": "from house.right import b",
                "house/right": "",
            },
            ["house/top.py:1: house.top imports house.right: top may import only left."],
        ),
        (
            {"garden/tree": "from house.right import c", "house/right/__init__": "import house.b"},
            [],
        ),
        (
            {"garden/tree": "from house.right.c import x", "house/right/c": ""},
            [
                "garden/tree.py:1: garden.tree imports house.right.c: "
                "right.c is not among what garden may use of house."
            ],
        ),
        (
            {"house/left/a": "from . import b", "house/left/b": "from house.left.a import x"},
            ["Cycle: house.left.a, house.left.b."],
        ),
        (
            {
                "house/left/a": "from house.left import b",
                "house/left/b": "if TYPE_CHECKING:\n    from house.left.a import A",
            },
            [],
        ),
        ({"garden/tree": "import house.ground", "house/ground": ""}, []),
        ({"garden/tree": "from house.left import b", "house/left/b": ""}, []),
        (
            {"garden/tree": "from house.left.bell import x", "house/left/bell": ""},
            [
                "garden/tree.py:1: garden.tree imports house.left.bell: "
                "left.bell is not among what garden may use of house."
            ],
        ),
        (
            {"house/ground": "import garden.tree", "garden/tree": ""},
            ["house/ground.py:1: house.ground imports garden.tree: house may not import garden."],
        ),
        (
            {"house/attic": "import house.ground", "house/ground": ""},
            [
                "house/attic.py:1: house.attic imports house.ground: "
                "house.attic is in no layer of layers.toml."
            ],
        ),
    ],
)
def test_what_is_found(tmp_path, files, said):
    for package in ("house", "garden"):
        write(tmp_path, {f"{package}/__init__": ""})
    write(tmp_path, {f"{name.rpartition('/')[0]}/__init__": "" for name in files} | files)
    layers = {name: LAYERS[name] for name in LAYERS}
    result = check_imports.violations(tmp_path, layers)
    assert [line for line in result if "__init__" not in line] == said


def test_this_tree():
    layers = tomllib.loads(check_imports.LAYERS.read_text(encoding="utf-8"))
    assert check_imports.violations(check_imports.ROOT, layers) == []
