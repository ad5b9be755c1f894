"""Arguments of public functions, checked and converted by their annotations (with beartype)."""

import collections.abc
import functools
import inspect
import re
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import jax
import numpy as np
from beartype import BeartypeConf
from beartype.door import is_bearable
from jax.core import Tracer
from numpy.typing import ArrayLike

from fedjax_pfl.utils.errors import InputError, refused, unknown_name
from fedjax_pfl.utils.name_matching import suggestions

F = TypeVar("F", bound=Callable[..., Any])
CONF = BeartypeConf(is_pep484_tower=True)  # whole numbers where a number is wanted
WORDS: dict[Any, str] = {
    str: "text",
    int: "a whole number",
    float: "a number",
    bool: "True or False",
    Path: "a path",
    types.NoneType: "None",
    np.ndarray: "an array",
    jax.Array: "an array",
}
SOURCES = {
    "Algorithm": "make_algorithm('fedavg')",
    "Dataset": "load_dataset('digits')",
    "Federation": "federate(dataset, partition)",
    "Final": "result.final",
    "Partition": "make_partition",
    "Result": "simulate",
}


def checked(function: F) -> F:
    """Check the arguments of a public function by its annotations, before it begins.

    Arrays without an axis are taken for numbers, other arrays for lists. The function itself checks
    what annotations don't express, such as a range.

    The decorated function raises `InputError` for a value of a type that its annotation excludes,
    and for arguments that are unknown, missing or given twice.
    """
    signature = inspect.signature(function)

    @functools.cache  # at the first call: annotations may name what is defined later
    def hints() -> Mapping[str, Any]:
        stated = {k: v for k, v in function.__annotations__.items() if k != "return"}
        holder = types.SimpleNamespace(__annotations__=stated)
        found = typing.get_type_hints(holder, function.__globals__)
        # Arrays are not checked: np.asarray decides.
        return {k: v for k, v in found.items() if not _arrays() <= {v, *typing.get_args(v)}}

    @functools.wraps(function)
    def call(*args: Any, **keywords: Any) -> Any:
        try:
            bound = signature.bind_partial(*args, **keywords)
        except TypeError as error:
            raise _misfit(function, keywords, error) from None
        for name, value in bound.arguments.items():
            if signature.parameters[name].kind is inspect.Parameter.VAR_KEYWORD:
                numbers = {k: _without_array(v, most=0) for k, v in value.items()}
                bound.arguments[name] = numbers
            elif name in hints():
                bound.arguments[name] = _checked(name, value, hints())
        try:
            bound = signature.bind(*bound.args, **bound.kwargs)
        except TypeError as error:
            raise _misfit(function, {}, error) from None
        return function(*bound.args, **bound.kwargs)

    return typing.cast(F, call)


def name_arguments(function: F, unknown: Callable[[str], InputError] | None = None) -> F:
    """Let a function raise `InputError` for arguments that are unknown, missing or given twice.

    Their types are not checked: those of a dataclass may be traced.

    Args:
      function: the function.
      unknown: returns the error for an unknown argument, by default with the nearest name.
    """

    @functools.wraps(function)
    def call(*args: Any, **keywords: Any) -> Any:
        try:
            return function(*args, **keywords)
        except TypeError:
            try:
                inspect.signature(function).bind(*args, **keywords)
            except TypeError as error:
                raise _misfit(function, keywords, error, unknown) from None
            raise

    return typing.cast(F, call)


def _misfit(
    called: Callable[..., Any],
    keywords: Iterable[str],
    error: TypeError,
    unknown: Callable[[str], InputError] | None = None,
) -> InputError:
    """Return an `InputError` for arguments that are unknown, missing, or given twice."""
    signature = inspect.signature(called)
    function = called.__qualname__.removesuffix(".__init__").rpartition(".")[-1]
    known = [str(p).partition(":")[0] for p in signature.parameters.values()]
    names = [name for name in known if name not in ("self", "cls")]
    for name in () if "**" in str(known) else keywords:
        if name not in signature.parameters:
            if unknown is not None:
                return unknown(name)
            held = re.search(r"(\w+): [\w.]*Mapping\[str, [\w.]*Any", str(signature))
            hint = None
            if function in ("simulate", "Simulation"):
                hint = (
                    "Options of the model and of local training are those of pfl.federate, "
                    "hyperparameters those of pfl.make_algorithm."
                )
            if held is not None and not suggestions(name, names):
                hint = f"Is it an entry of {held[1]}={{{name!r}: VALUE}}?"
            return unknown_name(f"argument of {function}()", name, names, hint=hint)
    return InputError(f"{function}(): {error}. It takes {', '.join(names) or 'none'}.")


def _arrays() -> set[Any]:
    """Return the parts of `ArrayLike`, which is a name without parts from NumPy 2.5 on."""
    return {*typing.get_args(ArrayLike)} or {ArrayLike}


def _checked(name: str, value: Any, hints: Mapping[str, Any]) -> Any:
    """Return a value of the annotated type, converted from an array if that is what it takes.

    Raises:
      InputError: it is of another type, perhaps that of another argument.
    """
    hint = hints[name]
    if is_bearable(value, hint, conf=CONF):
        return value
    plain = _without_arrays(value)
    if is_bearable(plain, hint, conf=CONF):
        return plain
    ours = [one for one, kind in hints.items() if getattr(kind, "__name__", "") in SOURCES]
    swapped = any(isinstance(value, hints[one]) for one in ours)
    order = f" (the order is {', '.join(ours)})" if swapped else ""
    raise refused(name, value, in_words(hint) + order)


def _without_arrays(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_arrays(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_without_arrays(one) for one in value]
    return _without_array(value)


def _without_array(value: Any, most: int = 1) -> Any:
    """Return a number or a list for an array of at most so many axes."""
    held = isinstance(value, np.ndarray | np.generic | jax.Array) and value.ndim <= most
    known = held and hasattr(value, "tolist") and not isinstance(value, Tracer)
    return value.tolist() if known else value


def in_words(hint: Any) -> str:
    """Return what an annotation allows, as error messages say it, such as "text or None"."""
    origin, of = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        arrays = _arrays()
        if arrays <= set(of):
            of = (np.ndarray, *(one for one in of if one not in arrays))
        *most, last = dict.fromkeys(map(in_words, of))
        return f"{', '.join(most)} or {last}" if most else last
    if hint in WORDS:
        return WORDS[hint]
    kind = origin or hint
    if kind is collections.abc.Callable:
        return "a function"
    if not isinstance(kind, type):
        return str(hint)
    if issubclass(kind, collections.abc.Iterable):
        what = "a dict" if issubclass(kind, Mapping) else "a list"
        inner = next((one for one in reversed(of) if one is not Ellipsis), Any)
        words = in_words(inner)
        return what if "Any" in words else f"{what} (each value {words})"
    article = "an" if kind.__name__[0] in "AEIOU" else "a"
    source = SOURCES.get(kind.__name__)
    return f"{article} {kind.__name__}" + (f", such as {source} gives" if source else "")
