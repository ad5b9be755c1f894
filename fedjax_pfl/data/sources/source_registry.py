"""Registry of data sets; every source returns a checked `Dataset` of NumPy arrays.

Each kind of file has its own module in this folder, which registers its sources; `builtin` imports
all of them. docs/data_sources.md lists where each source looks for its files.
"""

import inspect
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple, get_args

from fedjax_pfl.data.dataset import Dataset
from fedjax_pfl.data.files import as_path, reading
from fedjax_pfl.utils import aliases, name_matching
from fedjax_pfl.utils.boundary import checked
from fedjax_pfl.utils.errors import InputError, unknown_name
from fedjax_pfl.utils.registries import F, registering


class Source(NamedTuple):
    """Row of `DATASETS`.

    Attributes:
      description: one line.
      load: `load(data_dir, **options) -> Dataset`, or `load(data_dir, name, **options)` for a
        source that reads many data sets by name.
      named: whether the text after the colon in "SOURCE:..." is such a name instead of a path.
      bundled: whether it needs no files, so that nothing may follow the colon.
      natural: whether its samples belong to known clients, so that commands partition by column.
      needs: what `data_dir` must be, such as "a file"; empty if `data_dir` may be missing.
    """

    description: str
    load: Callable[..., Dataset]
    named: bool = False
    bundled: bool = False
    natural: bool = False
    needs: str = ""

    @property
    def options(self) -> list[inspect.Parameter]:
        """Its options, such as `image_size`."""
        return list(inspect.signature(self.load).parameters.values())[1 + self.named :]

    @property
    def text_options(self) -> list[str]:
        """Names of its options that are text, such as names of columns."""
        return [p.name for p in self.options if str in (p.annotation, *get_args(p.annotation))]


DATASETS: dict[str, Source] = {}


@checked
def register_dataset(
    name: str,
    description: str,
    named: bool = False,
    bundled: bool = False,
    natural: bool = False,
    needs: str = "",
) -> Callable[[F], F]:
    """Return a decorator that adds `load(data_dir: Path | None, ...) -> Dataset` to `DATASETS`.

    Args:
      name: name of the data set.
      description, named, bundled, natural, needs: see `Source`.

    Raises:
      InputError: the name is another data set's.
    """

    def entry(load: Callable[..., Dataset]) -> Source:
        return Source(description, load, named, bundled, natural, needs)

    return registering("data set", DATASETS, name, entry)


@checked
def load_dataset(name: str, data_dir: str | Path | None = None, **options: Any) -> Dataset:
    """Load a data set by name.

    Args:
      name: a name in `DATASETS`, in any spelling ("CIFAR-10" is "cifar10"); "NAME:PATH", short for
        `load_dataset(NAME, PATH)`; or "tfds:NAME", where NAME is one of TFDS's.
      data_dir: folder or file of the data, depending on the source; ignored by those that need
        none.
      **options: further options of the source, such as `image_size` or `max_tokens`; see the
        functions in `DATASETS`.

    Raises:
      InputError: unknown name or option, data not found (the message lists where it was looked for
        and how to provide it), or files of the wrong form.
    """
    text, (name, _, rest) = name, name.partition(":")
    name = name_matching.canonical_name(name, DATASETS, aliases.DATASETS)
    if name not in DATASETS:
        raise unknown_name("data set", name, DATASETS, hint=_path_hint(text))
    source = DATASETS[name]
    arguments = []
    if source.named:
        if not rest:
            raise InputError(f"Data set {name!r} needs a name: write {name}:NAME.")
        arguments = [rest]
    elif rest and source.bundled:
        raise InputError(f"Data set {name!r} needs no file: write {name}, got '{name}:{rest}'.")
    else:
        data_dir = rest or data_dir
    known = {parameter.name: parameter for parameter in source.options}
    for option in options:
        if option not in known:
            if not known:
                raise InputError(f"Data set {name!r} takes no options, got {option!r}.")
            raise unknown_name(f"option of data set {name!r}", option, known)
        text = known[option].annotation in (str, str | None)
        if text and isinstance(options[option], list | tuple):
            options[option] = ",".join(map(str, options[option]))
    if not data_dir and source.needs:
        raise InputError(
            f"Data set {name!r} needs {source.needs}: write {name}:PATH or set data_dir."
        )
    place = as_path("data_dir", data_dir) if data_dir else None
    with reading(place or name):
        return source.load(place, *arguments, **options)


def folders(data_dir: Path | None, *names: str) -> list[Path]:
    """Return where the files of a data set may be: folders of these names, then `data_dir`."""
    return [] if data_dir is None else [*(data_dir / name for name in names), data_dir]


def not_found(name: str, places: Iterable[Path], *ways: str) -> InputError:
    """Return the error for missing data: where it was looked for and how to provide it."""
    searched = ", ".join(map(str, places)) or "nowhere, as data_dir is not set"
    return InputError(
        f"Data set {name!r} was not found (looked in: {searched}). To provide it, "
        f"{', '.join(ways)}, give your own arrays as npz:PATH, or take 'digits', which needs no "
        "file."
    )


SAVEZ = "np.savez('FILE.npz', x_train=x, y_train=y)"
# The sources that read a file with this ending.
BY_ENDING = {
    ".csv": ("table", "text_csv"),
    ".parquet": ("parquet", "table"),
    ".npz": ("npz", "recordings"),
}


def _path_hint(name: str) -> str | None:
    """Return a hint for an unknown name that is a path or looks like one; None for others."""
    if ":" in name or name.startswith("emnist/"):
        return None
    try:
        exists = Path(name).exists()
    except (OSError, ValueError):
        return None
    if exists:
        forms = ("folder",) if Path(name).is_dir() else ()
        forms = BY_ENDING.get(Path(name).suffix.lower(), forms)
        if not forms:
            return f"None reads this file by its path: write arrays by {SAVEZ}, a table as CSV."
        text = " or ".join(f"{form}:{name}" for form in forms)
        return f"There is such a path: write what it holds, as in {text}."
    return "There is no such path either." if "/" in name or "." in name else None
