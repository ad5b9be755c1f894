"""A user's own files that register algorithms, data sets, partition rules or models."""

import ast
import hashlib
import importlib.util
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

import fedjax_pfl as pfl
from fedjax_pfl.data.files import as_path

EXAMPLES = Path(__file__).parents[1] / "examples"
EXAMPLE = "example:"  # prefix of an example's name, instead of a file


def examples() -> dict[str, str]:
    """The examples of this package by name, each with the first line of its docstring."""
    found = {}
    for path in sorted(EXAMPLES.glob("*.py")):
        said = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        found[path.stem] = said.partition("\n")[0]
    return found


def _path(file: str) -> Path:
    """The path of a file of --import_file.

    Raises:
      InputError: no such example.
    """
    if not file.startswith(EXAMPLE):
        return as_path("--import_file", file)
    name, known = file.removeprefix(EXAMPLE), examples()
    if name not in known:
        raise pfl.unknown_name("example", name, known)
    return EXAMPLES / f"{name}.py"


def load(files: Sequence[str]) -> None:
    """Imports each file once in a process.

    Raises:
      InputError: it is not there, or it does not run.
    """
    for file in filter(None, files):
        path = _path(file).resolve()
        name = f"own_code_{_digest(str(path).encode())}_{path.stem}"
        if name in sys.modules:
            continue
        if path.suffix != ".py":
            raise pfl.InputError(f"--import_file must be a Python file (NAME.py), got {file!r}.")
        if not os.path.isfile(path):
            raise pfl.InputError(f"--import_file={file}: there is no such file.")
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None and spec.loader is not None  # as it is a file NAME.py
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        try:
            spec.loader.exec_module(module)
        except Exception as error:
            del sys.modules[name]
            frames = traceback.extract_tb(error.__traceback__)
            own = [frame.lineno for frame in frames if frame.filename == str(path)]
            where = f" in line {own[-1]}" if own else ""  # a SyntaxError says its own
            what = f"{type(error).__name__}{where}: {error}"
            raise pfl.InputError(f"--import_file={file} does not run: {what}") from error


def digests(files: Sequence[str]) -> list[str]:
    """Digests of the files: a run with other contents is another run."""
    paths = (_path(file) for file in filter(None, files))
    return [f"{path.name} {_digest(path.read_bytes())}" for path in paths]


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]
