"""Check of the imports against the layers of `layers.toml`: `python -m tools.check_imports`.

Reports imports that point upward, imports that `only` or `public` do not allow, and circles; ends
with 1 if there are any. `--picture` shows rooms, floors and arrows instead.
"""

import ast
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
LAYERS = Path(__file__).with_name("layers.toml")


class Arrow(NamedTuple):
    """One import of one module by another.

    Attributes:
      path, line: its place, from the root.
      importer, imported: full names of the modules.
      typing: whether it is under TYPE_CHECKING.
    """

    path: str
    line: int
    importer: str
    imported: str
    typing: bool


def modules(root: Path, packages: Sequence[str]) -> dict[str, Path]:
    """Return files of the packages by their modules' full names."""
    result = {}
    for package in packages:
        for path in sorted((root / package).rglob("*.py")):
            parts = path.relative_to(root).with_suffix("").parts
            result[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return result


def arrows(root: Path, known: Mapping[str, Path]) -> list[Arrow]:
    """Return imports of known modules by known modules, anywhere in a file.

    A name that a package's `__init__` imports from elsewhere counts as an import of the module it
    comes from, except by another package: that imports the `__init__`.
    """
    trees = {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in known.items()}
    packages = {name: path for name, path in known.items() if path.stem == "__init__"}
    origins = {
        f"{package}.{alias.asname or alias.name}": name
        for package in packages
        for node in trees[package].body
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias, name in zip(node.names, _named(node, package, True), strict=True)
    }
    result = []
    for importer, path in known.items():
        where = path.relative_to(root).as_posix()
        for node, typing in _imports(trees[importer], False):
            for name in _named(node, importer, importer in packages):
                while room(name)[0] == room(importer)[0] and name in origins and name not in known:
                    name = origins[name]
                imported = _module(name, known)
                if imported is not None and imported != importer:
                    result.append(Arrow(where, node.lineno, importer, imported, typing))
    return result


def _imports(node: ast.AST, typing: bool) -> Iterator[tuple[ast.Import | ast.ImportFrom, bool]]:
    """Return every import below `node`, and whether it is under TYPE_CHECKING."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import | ast.ImportFrom):
            yield child, typing
        elif isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            for part in child.body:
                yield from _imports(ast.Module([part], []), True)
            for part in child.orelse:
                yield from _imports(ast.Module([part], []), typing)
        else:
            yield from _imports(child, typing)


def _named(node: ast.Import | ast.ImportFrom, importer: str, package: bool) -> list[str]:
    """Return full names that an import requests, modules or not."""
    if isinstance(node, ast.Import):
        return [one.name for one in node.names]
    base = node.module or ""
    if node.level:
        parts = importer.split(".")
        parts = parts[: len(parts) - node.level + package]
        base = ".".join([*parts, *filter(None, [node.module])])
    return [f"{base}.{one.name}" for one in node.names]


def _module(name: str, known: Mapping[str, Path]) -> str | None:
    """Return the module of a name: itself, or the one that contains it."""
    while name and name not in known:
        name = name.rpartition(".")[0]
    return name or None


def room(module: str, floors: Sequence[Sequence[str]] = ()) -> tuple[str, str]:
    """Return (package, room) of a module; a module outside the rooms is its own room."""
    package, _, rest = module.partition(".")
    return package, rest.partition(".")[0] or "__init__"


def heights(layers: Mapping[str, dict]) -> dict[tuple[str, str], int]:
    """Return the floor of every room, counted from each package's bottom."""
    return {
        (package, name): height
        for package, given in layers.items()
        for height, floor in enumerate(reversed(given["floors"]))
        for name in floor
    }


def complaint(arrow: Arrow, layers: Mapping[str, dict], floors: Mapping) -> str | None:
    """Return the error of one import, or None."""
    source, target = room(arrow.importer), room(arrow.imported)
    for one in (source, target):
        if one not in floors:
            return f"{'.'.join(one)} stands on no floor of {LAYERS.name}"
    if source == target:
        return None
    if source[0] != target[0]:
        if target[0] not in layers[source[0]].get("above", ()):
            return f"{source[0]} may not import {target[0]}"
        public = layers[source[0]].get("public", {}).get(target[0])
        name = arrow.imported.partition(".")[2] or "__init__"
        if public is None or f"{name}.__init__" in public:
            return None
        if any(f"{name}.".startswith(f"{one}.") for one in public):
            return None
        return f"{name} is not among what {source[0]} may use of {target[0]}"
    if floors[source] <= floors[target]:
        return f"{source[1]} is no floor above {target[1]}"
    only = layers[source[0]].get("only", {}).get(source[1])
    if only is not None and target[1] not in only:
        return f"{source[1]} may import only {', '.join(only)}"
    return None


def circles(found: Sequence[Arrow]) -> list[list[str]]:
    """Return groups of modules that import each other, directly or through others."""
    graph: dict[str, set[str]] = {}
    for arrow in found:
        if arrow.typing and room(arrow.importer) == room(arrow.imported):
            continue
        graph.setdefault(arrow.importer, set()).add(arrow.imported)
        graph.setdefault(arrow.imported, set())
    reached = {module: _reached(graph, module) for module in graph}
    groups = {
        frozenset({module, *(m for m in reached[module] if module in reached[m])})
        for module in graph
        if module in reached[module]
    }
    return sorted(sorted(group) for group in groups)


def _reached(graph: Mapping[str, set[str]], module: str) -> set[str]:
    seen, waiting = set(), list(graph[module])
    while waiting:
        one = waiting.pop()
        if one not in seen:
            seen.add(one)
            waiting.extend(graph[one])
    return seen


def complaints(root: Path, layers: Mapping[str, dict]) -> list[str]:
    """Return sentences on all errors."""
    lazy = [pair for given in layers.values() for pair in given.get("lazy", ())]
    every = arrows(root, modules(root, list(layers)))
    found = [arrow for arrow in every if [arrow.importer, arrow.imported] not in lazy]
    floors = heights(layers)
    messages = [
        f"{arrow.path}:{arrow.line}: {arrow.importer} imports {arrow.imported}: {wrong}."
        for arrow in found
        if (wrong := complaint(arrow, layers, floors)) is not None
    ]
    return messages + [f"A circle: {', '.join(group)}." for group in circles(found)]


def picture(root: Path, layers: Mapping[str, dict]) -> list[str]:
    """Return text of rooms by floor with their modules and imports, and the totals."""
    known = modules(root, list(layers))
    found, floors = arrows(root, known), heights(layers)
    inside = [a for a in found if room(a.importer)[0] == room(a.imported)[0]]
    pairs = {(room(a.importer), room(a.imported)) for a in inside}
    pairs = {(source, target) for source, target in pairs if source != target}
    lines = []
    for package, given in layers.items():
        ours = {pair for pair in pairs if pair[0][0] == package}
        upward = sum(floors.get(s, -1) <= floors.get(t, 99) for s, t in ours)
        rooms = {room(module) for module in known if room(module)[0] == package}
        rounds = [group for group in circles(found) if group[0].startswith(f"{package}.")]
        lines.append(
            f"{package}: {len(rooms)} rooms on {len(given['floors'])} floors, {len(ours)} arrows, "
            f"{upward} upward, {len(rounds)} circles"
        )
        for floor in given["floors"]:
            for name in floor:
                count = sum(room(module) == (package, name) for module in known)
                below = sorted(target[1] for source, target in ours if source[1] == name)
                lines.append(f"  {name} ({count}): {', '.join(below) or '-'}")
    return lines


def main(words: Sequence[str]) -> int:
    layers = tomllib.loads(LAYERS.read_text(encoding="utf-8"))
    if list(words) == ["--picture"]:
        print(*picture(ROOT, layers), sep="\n")
        return 0
    said = complaints(ROOT, layers)
    print(*said or ["No import points upward, and there is no circle."], sep="\n")
    return int(bool(said))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
