"""Faults that the quick tests must find: `python -m tools.mutants [PART OF A PATH ...]`.

Each one-line fault of `mutants.toml` is applied alone to a copy of the checkout, and the quick
tests that import the changed file, then tests of whole rounds, run until one fails, which must pass
without the fault. What no test finds is listed as a survivor, and the command ends with 1.

Of the faults in algorithms, ten run each time, chosen by a hash of the current commit.
"""

import argparse
import ast
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
TABLE = Path(__file__).with_name("mutants.toml")
PYTHON = ("fedjax_pfl", "experiments", "tests")  # folders of what is imported
ALGORITHMS = "fedjax_pfl/algorithms/"
CHOSEN, MOST, SECONDS = 10, 12, 900  # algorithms' faults, files of importers, time for one fault
# Tests of whole rounds, which import the rest of the library without naming it.
ROUNDS = (
    "tests/algorithms/test_fedavg.py",
    "tests/algorithms/test_ditto.py",
    "tests/algorithms/test_scaffold.py",
    "tests/algorithms/test_feddwa.py",
    "tests/algorithms/test_pfedla.py",
    "tests/engine/test_simulate.py",
    "tests/core",
)


class Fault(NamedTuple):
    """One line of `file` in which `old` becomes `new`."""

    file: str
    kind: str
    old: str
    new: str

    def __str__(self) -> str:
        return f"{self.file} ({self.kind}): {self.old} -> {self.new}"


def faults(table: Path = TABLE) -> list[Fault]:
    """Read the table."""
    return [Fault(**row) for row in tomllib.loads(table.read_text(encoding="utf-8"))["fault"]]


def chosen(every: Sequence[Fault], seed: str) -> list[Fault]:
    """Return all faults outside of algorithms, and ten of those in them."""

    def lot(fault: Fault) -> str:
        return hashlib.sha256(f"{seed} {fault}".encode()).hexdigest()

    inside = [fault for fault in every if fault.file.startswith(ALGORITHMS)]
    kept = set(sorted(inside, key=lot)[:CHOSEN])
    return [fault for fault in every if fault in kept or fault not in inside]


class Imports:
    """Which modules of the checkout a file names, through the `__init__` of packages.

    Attributes:
      named: the modules that each file names, helper modules of tests included; a test names the
        algorithms that it makes by name.
    """

    def __init__(self, root: Path):
        paths = [path for part in PYTHON for path in sorted((root / part).rglob("*.py"))]
        self.paths = {_module(path.relative_to(root)): path for path in paths}
        self.trees = {
            name: ast.parse(path.read_text(encoding="utf-8")) for name, path in self.paths.items()
        }
        registered = {
            name: module
            for module in self.paths
            if module.startswith("fedjax_pfl.algorithms.")
            for name in re.findall(r'algorithm\("(\w+)"\)', self.paths[module].read_text("utf-8"))
        }
        self.named = {name: self._names(name) for name in self.paths}
        for name in self.named:
            if name.startswith("tests.algorithms.test_"):
                strings = {
                    node.value
                    for node in ast.walk(self.trees[name])
                    if isinstance(node, ast.Constant) and isinstance(node.value, str)
                }
                self.named[name] |= {registered[s] for s in strings & registered.keys()}

    def tests_of(self, file: str) -> tuple[list[str], ...]:
        """Return test files that name the module or mirror its file, its importers', `ROUNDS`."""
        module = _module(Path(file))
        direct = self._naming({module})
        stem = f"test_{module.rpartition('.')[2]}"
        mirror = [t for t in self._tests() if t.rpartition(".")[2].startswith(stem)]
        folder = module.split(".")[1]
        direct = [t for t in (*mirror, *direct) if folder in t or t in direct]
        importers = {
            name
            for name, names in self.named.items()
            if module in names and not name.startswith("tests.") and name in self.paths
        }
        further = [t for t in self._naming(importers) if t not in direct]
        first = sorted(further, key=lambda t: (folder not in t, t))[:MOST]
        rounds = list(ROUNDS) if file.startswith("fedjax_pfl/") else []
        direct = [self._file(t) for t in dict.fromkeys(direct)]
        return direct, [self._file(t) for t in first], rounds

    def _tests(self) -> list[str]:
        return [name for name in self.paths if name.rpartition(".")[2].startswith("test_")]

    def _naming(self, modules: set[str]) -> list[str]:
        return [t for t in self._tests() if self._closure(t) & modules]

    def _closure(self, test: str) -> set[str]:
        """What a test and the helper modules of tests that it imports name."""
        seen, left = set(), {test}
        while left:
            name = left.pop()
            if name not in seen:
                seen.add(name)
                left |= {n for n in self.named[name] if n.startswith("tests.")} - seen
        return {named for name in seen for named in self.named[name]}

    def _file(self, module: str) -> str:
        return module.replace(".", "/") + ".py"

    def _names(self, module: str) -> set[str]:
        """Full names of modules in imports, and in attributes of imported packages."""
        bound, found = {}, set()
        for node in ast.walk(self.trees[module]):
            for local, full in _imported(node, module, self.paths[module].stem == "__init__"):
                bound[local] = full
                found.add(self._origin(full))
        for node in ast.walk(self.trees[module]):
            if isinstance(node, ast.Attribute):
                root, *names = ast.unparse(node).split(".")
                if root in bound:
                    found.add(self._origin(".".join([bound[root], *names])))
        return found - {""}

    def _origin(self, full: str) -> str:
        """The module in which a dotted name is defined, as far as it is one of the checkout."""
        for _ in range(8):
            if full in self.paths and self.paths[full].stem != "__init__":
                return full
            package = full
            while package and package not in self.paths:
                package = package.rpartition(".")[0]
            rest = full[len(package) + 1 :].split(".")[0]
            if not package or self.paths[package].stem != "__init__" or not rest:
                return package
            origin = next(
                (
                    there
                    for node in self.trees[package].body
                    for local, there in _imported(node, package, True)
                    if local == rest and there != full
                ),
                "",
            )
            if not origin:
                return package
            full = origin
        return ""


def _module(path: Path) -> str:
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imported(node: ast.AST, module: str, package: bool) -> Iterator[tuple[str, str]]:
    """Yield (local name, full name) of an import."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            yield (
                alias.asname or alias.name.split(".")[0],
                (alias.name if alias.asname else alias.name.split(".")[0]),
            )
            yield alias.name, alias.name
    elif isinstance(node, ast.ImportFrom):
        above = module.split(".")[: len(module.split(".")) - node.level + package]
        base = ".".join([*(above if node.level else []), *filter(None, [node.module])])
        for alias in node.names:
            yield alias.asname or alias.name, f"{base}.{alias.name}"


class Copy:
    """A copy of the checkout in which tests run with a fault."""

    def __init__(self, folder: Path):
        self.folder = folder
        command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        for name in filter(None, listed.stdout.split("\0")):
            if (ROOT / name).is_file():  # not deleted
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / name, folder / name)

    def first_failure(self, fault: Fault, tests: Sequence[str]) -> str:
        """Return what fails with the fault and passes without it, or ""."""
        file = self.folder / fault.file
        text = file.read_text(encoding="utf-8")
        if text.count(fault.old) != 1:
            raise SystemExit(f"error: {fault} does not stand once in its file")
        file.write_text(text.replace(fault.old, fault.new), encoding="utf-8")
        try:
            failure = self._failure(tests)
        finally:
            file.write_text(text, encoding="utf-8")
        if failure and (again := self._failure([failure])):
            raise SystemExit(f"error: {again} fails without any fault too")
        return failure

    def _failure(self, tests: Sequence[str]) -> str:
        cache = {"JAX_COMPILATION_CACHE_DIR": str(self.folder / "programs")}
        cache["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.1"
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-x",
            "-rfE",
            "--no-header",
            "-p",
            "no:cacheprovider",
        ]
        try:
            run = subprocess.run(
                [*command, *tests],
                cwd=self.folder,
                env=os.environ | cache,
                capture_output=True,
                text=True,
                timeout=SECONDS,
            )
        except subprocess.TimeoutExpired:
            return tests[0]
        if run.returncode in (0, 5):  # 5: every test of these files is costly
            return ""
        named = re.findall(
            r"^(?:FAILED|ERROR) (\S+?\.py(?:::\S+\[.*?\](?= |$)|::\S+)?)", run.stdout, re.M
        )
        return named[0] if named else tests[0]


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "parts", nargs="*", help="only faults in files with one of these in the path"
    )
    parser.add_argument("--all", action="store_true", help="every fault in algorithms")
    parser.add_argument("--costly", action="store_true", help="with the costly tests")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args(arguments)
    if options.costly:
        os.environ["PYTEST_ADDOPTS"] = "-m ''"
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    every = faults() if options.all or options.parts else chosen(faults(), commit.stdout.strip())
    wanted = [
        f for f in every if not options.parts or any(part in f.file for part in options.parts)
    ]
    imports = Imports(ROOT)
    found = dict(run(wanted, imports, options.workers))
    survivors = [fault for fault in wanted if not found[fault]]
    print(f"{len(wanted)} faults, {len(wanted) - len(survivors)} found, survivors:")
    for fault in survivors:
        print(f"  {fault}")
    return 1 if survivors else 0


def run(wanted: Sequence[Fault], imports: Imports, workers: int) -> Mapping[Fault, str]:
    """Return the first failing test of each fault, or "", and print them as they come."""
    with tempfile.TemporaryDirectory() as folder:
        copies: Queue[Copy] = Queue()
        for k in range(workers):
            copies.put(Copy(Path(folder) / str(k)))

        def find(fault: Fault) -> str:
            copy, began = copies.get(), time.monotonic()
            try:
                failure = ""
                for tests in imports.tests_of(fault.file):
                    failure = failure or (copy.first_failure(fault, tests) if tests else "")
            finally:
                copies.put(copy)
            print(
                f"{time.monotonic() - began:5.0f} s  {fault}\n         {failure or 'SURVIVES'}",
                flush=True,
            )
            return failure

        with ThreadPoolExecutor(workers) as pool:
            return dict(zip(wanted, pool.map(find, wanted), strict=True))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
