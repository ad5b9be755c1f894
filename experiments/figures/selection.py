"""Selection of the runs that a figure can draw, and their names by differences."""

import contextlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any

from fedjax_pfl.data.files import as_path, read_bytes
from fedjax_pfl.utils.errors import InputError, unknown_name
from fedjax_pfl.utils.errors import shown as shown_text
from fedjax_pfl.utils.name_matching import suggestions

from ..cli import flag_roles, provenance
from ..outputs import line_styles
from .runs import ALGORITHM, CODE, REVISION, Run, same_data

# Runs that differ only in these are repetitions of one experiment.
REPEATS = ("seed", "num_seeds", "partition_seed")

DATASET = "dataset"


def having(runs: Sequence[Run], has: Callable[[Run], bool], what: str, remedy: str) -> list[Run]:
    """Return the runs for which `has(run)` holds.

    Raises:
      InputError: there is none; "none of the runs has `what`: `remedy`".
    """
    chosen = [run for run in runs if has(run)]
    if not chosen:
        some = ", ".join(str(run.folder) for run in runs[:3]) + (", ..." if len(runs) > 3 else "")
        raise InputError(f"None of the runs has {what} ({some}): {remedy}.")
    return chosen


def with_record(runs: Sequence[Run], name: str) -> list[Run]:
    """Return the runs whose algorithm records `name` for each client."""
    known = sorted({name for run in runs for name in run.records})
    return having(
        runs, lambda run: name in run.records, f"the record {name!r}",
        f"run an algorithm that records it; these record {', '.join(known)}",
    )  # fmt: skip


def with_matrix(runs: Sequence[Run], name: str) -> list[Run]:
    """Return the runs whose algorithm records the matrix `name`."""
    known = sorted({name for run in runs for name in run.result.matrices})
    have = f"these record {', '.join(known)} (choose with --matrix)" if known else "these have none"
    return having(
        runs, lambda run: name in run.result.matrices, f"the matrix {name!r}",
        f"run an algorithm that records it, with --matrix_rounds for the rounds to keep; {have}",
    )  # fmt: skip


# How to make a run score further models.
SCORED_WITH = {
    "trained": "run with --moments=both",
    "adapted": "run with --adapt_steps=10 --adapt_when=last",
    "guidance": "run feddwa with --set=feddwa.score_guidance=true",
    "global": "run an algorithm with one server model",
}


def with_scores(runs: Sequence[Run], models: Sequence[str], split: str = "test") -> list[Run]:
    """Return the runs that scored all of `models` on `split`."""
    for model in models:
        known = sorted({name for run in runs for name in run.scored(split)})
        other = f"these scored {', '.join(known)}" if known else "these scored no such samples"
        if split == "validation":
            other = "run with --validation_fraction=0.2"
        remedy = SCORED_WITH.get(model, other) if known else other
        runs = having(
            runs, lambda run, m=model: m in run.scored(split),
            f"{split} scores of the model {model!r}", remedy,
        )  # fmt: skip
    return list(runs)


def varying(
    runs: Sequence[Run], ignore: Sequence[str] = (), counted: Collection[str] = ()
) -> list[str]:
    """Return the names of settings in which runs differ, hyperparameters within an algorithm.

    The user's own code counts within an algorithm, too. Flags of additional measurements are left
    out unless they are `counted`.
    """
    names = dict.fromkeys(name for run in runs for name in run.settings)
    bare = {name for run in runs for name in run.hyperparameters}
    left, differ = {*ignore, *flag_roles.MEASUREMENTS.difference(counted)}, []
    for name in names:
        if name in left or (name in bare and all(name not in run.flags for run in runs)):
            continue  # a hyperparameter counts under its full name
        seen: dict[str, set[str]] = {}
        for run in runs:
            if name in run.settings:
                within = run.algorithm if name == CODE else ""
                seen.setdefault(within, set()).add(repr(run.settings[name]))
        if any(len(values) > 1 for values in seen.values()):
            differ.append(name)
    return differ


def differing_settings(runs: Sequence[Run], counted: Collection[str] = ()) -> list[str]:
    """Return the names of settings other than seeds in which runs to be pooled differ.

    Flags of additional measurements are left out unless they are `counted`. A run without a
    recorded revision differs from any other: its numbers may be another version's.
    """
    differ = varying(runs, REPEATS, counted)
    unknown = len(runs) > 1 and any(REVISION not in run.config for run in runs)
    return [*differ, *([REVISION] if unknown and REVISION not in differ else [])]


def mixed_code(groups: Iterable[Sequence[Run]]) -> list[str]:
    """Return a note if pooled runs differ in the version of JAX or in the package's code."""
    mixed = [run.folder for runs in groups for run in runs if _code(run) != _code(runs[0])]
    if not mixed:
        return []
    return [
        f"Pooled with runs of another version of JAX or of this package's code: "
        f"{', '.join(map(str, mixed))}."
    ]


def _code(run: Run) -> dict[str, Any]:
    versions = run.config.get("versions")
    known = versions if isinstance(versions, dict) else {}
    return {name: known.get(name) for name in provenance.versions()}


def with_setting(runs: Sequence[Run], name: str) -> list[Run]:
    """Return the runs that have a setting; a data set's file is named without its path.

    Raises:
      InputError: none has it; names the nearest.
    """
    having_it = [run for run in runs if name in run.settings]
    if not having_it:
        known = {name for run in runs for name in run.settings}
        bare = {name.partition(".")[2] for name in known if "." in name}
        differ = varying(runs)
        hint = f"These runs differ in {', '.join(differ)}." if differ else None
        hint = None if suggestions(name, sorted(known | bare)) else hint
        where = f"config.json of {runs[0].folder}"
        raise unknown_name("setting", name, known | bare, hint=hint, listed=where)
    if name == DATASET:
        _name_data(having_it)
    return having_it


def _name_data(runs: Sequence[Run]) -> None:
    """Replace a data set's path, such as npz:a/mine.npz, by its name if unique."""
    paths = [str(run.settings[DATASET]) for run in runs]
    names = [str(run.summary.get(DATASET, where)) for run, where in zip(runs, paths, strict=True)]
    pairs = set(zip(paths, names, strict=True))
    for run, where, name in zip(runs, paths, names, strict=True):
        if ":" in where and sum(name == other for _, other in pairs) == 1:
            run.settings[DATASET] = name


def shown(value: Any) -> str:
    """Format a setting's value; missing ones are "default", as --share has a value "none"."""
    if value is None:
        return "default"
    if isinstance(value, list):
        return ",".join(map(str, value)) or "none"
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def bare(name: str) -> str:
    """Return the name of a setting without its algorithm."""
    return name.partition(".")[2] or name


def named_settings(run: Run, names: Sequence[str]) -> list[str]:
    """Return words such as "top_k=5" for the settings among the names that a run has."""
    return [f"{bare(n)}={shown(run.settings[n])}" for n in names if n in run.settings]


def labels(runs: Sequence[Run]) -> list[str]:
    """Return a name for each run: its algorithm, then the settings in which runs differ.

    Where these are too many or don't tell runs apart, the name of the comparison's folder.
    """
    differ = [name for name in varying(runs) if name not in (ALGORITHM, *REPEATS)]
    several = len({run.algorithm for run in runs}) > 1
    # Other data under the same flags: a file's content changed, or another file was given.
    hidden = not all(same_data(runs[0], run) for run in runs[1:])
    hidden = hidden and len({repr([run.settings.get(name) for name in differ]) for run in runs}) < 2

    def label(run: Run) -> str:
        words = named_settings(run, differ)
        return ", ".join([run.algorithm, *words] if several or not words else words)

    chosen = [label(run) for run in runs]
    if len(differ) > 3 or len(set(chosen)) < len(chosen):
        chosen = [f"{run.folder.parent.name}/{run.folder.name}" for run in runs]
    if len(set(chosen)) < len(chosen):
        chosen = [str(run.folder) for run in runs]
    if hidden:
        chosen = [f"{name} ({run.data_name})" for name, run in zip(chosen, runs, strict=True)]
    require_different_labels(chosen)
    return [renamed(name) for name in chosen]


def with_styles(runs: Sequence[Run]) -> list[tuple[Run, str, int]]:
    """Return each run with its label and the style of its algorithm's line."""
    styles = line_styles.numbers([run.algorithm for run in runs])
    return list(zip(runs, labels(runs), styles, strict=True))


_LABELS: ContextVar[Mapping[str, str] | None] = ContextVar("labels", default=None)


@contextlib.contextmanager
def with_labels(labels: Mapping[str, str]) -> Iterator[None]:
    """Context in which `labels` and `renamed` write these labels."""
    token = _LABELS.set(labels)
    try:
        yield
    finally:
        _LABELS.reset(token)


def renamed(name: str) -> str:
    """Replace a label, or the algorithm at its beginning, as --labels says."""
    labels = _LABELS.get() or {}
    first, comma, rest = name.partition(", ")
    return labels.get(name) or f"{labels.get(first, first)}{comma}{rest}"


def require_different_labels(names: Iterable[str]) -> None:
    """Raise `InputError` if --labels gives two names one label, which would pool their numbers."""
    owners: dict[str, str] = {}
    for name in names:
        other = owners.setdefault(label := renamed(name), name)
        if other != name:
            raise InputError(
                f"--labels makes both {other!r} and {name!r} {label!r}: give them different labels."
            )


def read_labels(file: str | None) -> dict[str, str]:
    """Read labels by name from lines NAME=LABEL; lines that begin with # are skipped.

    Raises:
      InputError: no such file, or a line of another form.
    """
    if not file:
        return {}
    path, result = as_path("--labels", file), {}
    try:
        lines = read_bytes(path).decode().splitlines()
    except UnicodeDecodeError as error:
        raise InputError(f"--labels={path} is not UTF-8 text: {error}.") from None
    for number, line in enumerate(lines, 1):
        name, equals, label = (part.strip() for part in line.partition("="))
        if not line.strip() or line.startswith("#"):
            continue
        if not (equals and name and label) or name in result:
            raise InputError(
                f"Line {number} of {path} must read NAME=LABEL, each name once, such as "
                f"feddwa=FedDWA, got {shown_text(line)}."
            )
        result[name] = label
    return result
