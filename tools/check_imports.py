"""Check of the imports against the layers of `layers.toml`: `python -m tools.check_imports`.

Reports imports that point upward, imports that `only` or `public` do not allow, cycles, and files
of one name in a package; ends with 1 if there are any. `--summary` shows components, numbers and
imports instead.
"""

import ast
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
LAYERS = Path(__file__).with_name("layers.toml")


class Import(NamedTuple):
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


def imports(root: Path, known: Mapping[str, Path]) -> list[Import]:
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
                while (
                    component(name)[0] == component(importer)[0]
                    and name in origins
                    and name not in known
                ):
                    name = origins[name]
                imported = _module(name, known)
                if imported is not None and imported != importer:
                    result.append(Import(where, node.lineno, importer, imported, typing))
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


def component(module: str) -> tuple[str, str]:
    """Return (package, component) of a module; a top-level module is its own component."""
    package, _, rest = module.partition(".")
    return package, rest.partition(".")[0] or "__init__"


def layer_numbers(packages: Mapping[str, dict]) -> dict[tuple[str, str], int]:
    """Return the layer of every component, counted from the lowest of its package."""
    return {
        (package, name): height
        for package, config in packages.items()
        for height, layer in enumerate(reversed(config["layers"]))
        for name in layer
    }


def violation(one_import: Import, packages: Mapping[str, dict], numbers: Mapping) -> str | None:
    """Return the error of one import, or None."""
    source, target = component(one_import.importer), component(one_import.imported)
    for one in (source, target):
        if one not in numbers:
            return f"{'.'.join(one)} is in no layer of {LAYERS.name}"
    if source == target:
        return None
    if source[0] != target[0]:
        if target[0] not in packages[source[0]].get("above", ()):
            return f"{source[0]} may not import {target[0]}"
        public = packages[source[0]].get("public", {}).get(target[0])
        name = one_import.imported.partition(".")[2] or "__init__"
        if public is None or f"{name}.__init__" in public:
            return None
        if any(f"{name}.".startswith(f"{one}.") for one in public):
            return None
        return f"{name} is not among what {source[0]} may use of {target[0]}"
    if numbers[source] <= numbers[target]:
        return f"{source[1]} is not above {target[1]}"
    only = packages[source[0]].get("only", {}).get(source[1])
    if only is not None and target[1] not in only:
        return f"{source[1]} may import only {', '.join(only)}"
    return None


def cycle(found: Sequence[Import]) -> list[str]:
    """Return the modules of a cycle of imports, in alphabetical order; [] if there is none."""
    graph = TopologicalSorter()
    for one in found:
        if not (one.typing and component(one.importer) == component(one.imported)):
            graph.add(one.importer, one.imported)
    try:
        graph.prepare()
    except CycleError as error:
        return sorted(set(error.args[1]))
    return []


def violations(root: Path, packages: Mapping[str, dict]) -> list[str]:
    """Return sentences on all errors."""
    found = imports(root, modules(root, list(packages)))
    numbers = layer_numbers(packages)
    messages = [
        f"{one.path}:{one.line}: {one.importer} imports {one.imported}: {wrong}."
        for one in found
        if (wrong := violation(one, packages, numbers)) is not None
    ]
    messages += repeated_names(root, packages)
    group = cycle(found)
    return [*messages, f"Cycle: {', '.join(group)}."] if group else messages


def repeated_names(root: Path, packages: Iterable[str]) -> list[str]:
    """Return a sentence for each file name that occurs twice in a package."""
    messages = []
    for package in packages:
        places: dict[str, list[str]] = {}
        for path in modules(root, [package]).values():
            if not path.stem.startswith("__"):
                places.setdefault(path.name, []).append(str(path.relative_to(root)))
        twice = [paths for paths in places.values() if len(paths) > 1]
        messages += [f"Files of one name: {', '.join(paths)}." for paths in twice]
    return messages


def summary(root: Path, packages: Mapping[str, dict]) -> list[str]:
    """Return lines on components by layer with their numbers of modules and imports."""
    known = modules(root, list(packages))
    found, numbers = imports(root, known), layer_numbers(packages)
    inside = [a for a in found if component(a.importer)[0] == component(a.imported)[0]]
    pairs = {(component(a.importer), component(a.imported)) for a in inside}
    pairs = {(source, target) for source, target in pairs if source != target}
    lines = []
    for package, config in packages.items():
        ours = {pair for pair in pairs if pair[0][0] == package}
        upward = sum(numbers.get(s, -1) <= numbers.get(t, 99) for s, t in ours)
        components = {component(module) for module in known if component(module)[0] == package}
        loop = cycle([one for one in found if component(one.importer)[0] == package])
        lines.append(
            f"{package}: {len(components)} components in {len(config['layers'])} layers, "
            f"{len(ours)} imports, {upward} upward, {'a' if loop else 'no'} cycle"
        )
        for layer in config["layers"]:
            for name in layer:
                count = sum(component(module) == (package, name) for module in known)
                below = sorted(target[1] for source, target in ours if source[1] == name)
                lines.append(f"  {name} ({count}): {', '.join(below) or '-'}")
    return lines


def main(words: Sequence[str]) -> int:
    packages = tomllib.loads(LAYERS.read_text(encoding="utf-8"))
    if list(words) == ["--summary"]:
        print(*summary(ROOT, packages), sep="\n")
        return 0
    messages = violations(ROOT, packages)
    print(*messages or ["No import points upward, and there are no cycles."], sep="\n")
    return int(bool(messages))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
