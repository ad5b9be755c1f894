"""Users' own files that register algorithms, data sets, partition rules, models or objectives."""

import ast
import contextlib
import hashlib
import importlib.util
import sys
import traceback
from collections.abc import Sequence
from modulefinder import ModuleFinder
from pathlib import Path
from typing import NamedTuple

import fedjax_pfl as pfl
from fedjax_pfl.data.files import as_path

from .flag_groups import Group

COMMANDS = Path(__file__).parents[1]
EXAMPLES = COMMANDS / "examples"
EXAMPLE = "example:"  # prefix of an example's name, instead of a file
# Files of this package and of installed ones are never a user's.
OURS, INSTALLED = (COMMANDS, Path(pfl.__file__).parent), "site-packages"
REGISTRIES = (
    pfl.data.DATASETS, pfl.data.RULES, pfl.models.METRICS, pfl.models.MODELS, pfl.models.OBJECTIVES,
    pfl.training.LR_SCHEDULES, pfl.training.OPTIMIZERS,
)  # fmt: skip


class _Loaded(NamedTuple):
    """An imported file.

    Attributes:
      digests: of the file and of the files that it imports from its folder, by relative path; of
        the contents that run, whatever becomes of the files.
      algorithms: names of the algorithms that it registered; empty if it registered anything else.
    """

    digests: dict[str, str]
    algorithms: set[str]


_loaded: dict[str, _Loaded] = {}  # by module


def define(group: Group) -> None:
    """Define the flags for plugins."""
    group.pairs(
        "import_file",
        "a Python file of your own that registers algorithms, data sets, partition rules, models, "
        "optimizers or schedules",
    )
    meaning = "allow --import_file and --compilation_cache in flagfiles too: code of their authors "
    group.switch("trust_flagfiles", False, meaning + "then runs here")


def examples() -> dict[str, str]:
    """Return the examples of this package by name, each with the first line of its docstring."""
    result = {}
    for path in sorted(EXAMPLES.glob("*.py")):
        text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        result[path.stem] = text.partition("\n")[0]
    return result


def _path(file: str) -> Path:
    """Return the path of a file of --import_file.

    Raises:
      InputError: no such example.
    """
    if not file.startswith(EXAMPLE):
        return as_path("--import_file", file).resolve()
    name, known = file.removeprefix(EXAMPLE), examples()
    if name not in known:
        raise pfl.core.unknown_name("example", name, known)
    return (EXAMPLES / f"{name}.py").resolve()


def _module(path: Path) -> str:
    return f"own_code_{_digest(str(path).encode())}_{path.stem}"


def load(files: Sequence[str]) -> None:
    """Import each file once per process; its neighbours are then importable.

    Raises:
      InputError: it is not there, or it does not run.
    """
    for file in filter(None, files):
        path = _path(file)
        if _module(path) in sys.modules:
            continue
        if path.suffix != ".py":
            raise pfl.InputError(f"--import_file must be a Python file (NAME.py), got {file!r}.")
        if not path.is_file():
            raise pfl.InputError(f"--import_file={file}: there is no such file.")
        _import(file, path)


def _import(file: str, path: Path) -> None:
    """Import an existing file."""
    name, folder = _module(path), path.parent
    contents = {one: one.read_bytes() for one in _imported(path)}
    for one in contents:
        module = ".".join(one.relative_to(folder).with_suffix("").parts).removesuffix(".__init__")
        other = getattr(sys.modules.get(module), "__file__", None)
        if one != path and other is not None and Path(other).resolve() != one:
            raise pfl.InputError(
                f"--import_file={file} imports {module} from {one}, but a module of that name is "
                f"loaded already, {other}: rename the file."
            )
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None  # as it is a file NAME.py
    module = importlib.util.module_from_spec(spec)
    before, known, rest = set(sys.modules), set(pfl.core.ALGORITHMS), _registered()
    sys.modules[name] = module
    sys.path.insert(0, str(folder))
    try:
        # No cached bytecode: what runs is what the digest is of.
        exec(compile(contents[path], str(path), "exec", dont_inherit=True), vars(module))
    except (Exception, SystemExit) as error:
        for new in set(sys.modules) - before:
            if new == name or _of_user(sys.modules[new], folder):
                del sys.modules[new]
        raise pfl.InputError(
            f"--import_file={file} does not run: {_located_error(error, path)}"
        ) from error
    finally:
        sys.path.remove(str(folder))
        if str(folder) not in sys.path:
            sys.path.append(str(folder))  # for imports in functions
    for new in set(sys.modules) - before - {name}:  # those that no statement names
        if (one := _of_user(sys.modules[new], folder)) and one not in contents:
            contents[one] = one.read_bytes()
    files = sorted(contents, key=lambda one: (one != path, one))
    digests = {one.relative_to(folder).as_posix(): _digest(contents[one]) for one in files}
    own = set(pfl.core.ALGORITHMS) - known if _registered() == rest else set()
    _loaded[name] = _Loaded(digests, own)


def _registered() -> list[set[str]]:
    return [set(registry) for registry in REGISTRIES]


def _of_user(module: object, folder: Path) -> Path | None:
    """Return the file of a user's module below a folder; None for other modules."""
    file = getattr(module, "__file__", None)
    path = Path(file).resolve() if isinstance(file, str) else None
    if path is None or not path.is_relative_to(folder) or path.suffix != ".py":
        return None
    alien = INSTALLED in path.parts or any(path.is_relative_to(ours) for ours in OURS)
    return None if alien else path


def _imported(path: Path) -> list[Path]:
    """Return the file and the files below its folder that it imports, also indirectly."""
    finder = ModuleFinder([str(path.parent)], excludes=[place.name for place in OURS])
    with contextlib.suppress(SyntaxError, ValueError):  # its import reports it
        finder.run_script(str(path))
    found = [_of_user(module, path.parent) for module in finder.modules.values()]
    return list(dict.fromkeys([path, *filter(None, found)]))


def _located_error(error: BaseException, path: Path) -> str:
    """Return an error of a user's file with the line where it occurred."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if Path(f.filename).resolve().is_relative_to(path.parent)]
    where = ""  # a SyntaxError has its own
    if own:
        last = Path(own[-1].filename).resolve()
        neighbour = "" if last == path else f" of {last.relative_to(path.parent).as_posix()}"
        where = f" in line {own[-1].lineno}{neighbour}"
    what = "it ends the process" if isinstance(error, SystemExit) else str(error)
    return f"{type(error).__name__}{where}: {what}"


def digests(files: Sequence[str], algorithm: str | None = None) -> list[str]:
    """Return the digests of files and their imports, which are part of a run's identity.

    Args:
      algorithm: leaves out the files that registered nothing but other algorithms.
    """
    load(files)
    loaded = [_loaded[_module(_path(file))] for file in filter(None, files)]
    if algorithm is not None:
        loaded = [one for one in loaded if not one.algorithms or algorithm in one.algorithms]
    return list(dict.fromkeys(f"{name} {d}" for one in loaded for name, d in one.digests.items()))


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]
