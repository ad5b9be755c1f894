"""Griffe extension for the site's docstrings, which splits entries of several names.

    Args:
      momentum, weight_decay: of plain SGD.

are two parameters with one description; Griffe would read one parameter of that name. A star behind
a letter, a quote or a comma, as in w*_i or "*conv,*fc", stays a star and begins no emphasis. A
function with `**options` and a signature of its own, such as `federate`, is shown as Python's help
shows it.
"""

import importlib
import inspect
import re

try:
    from griffe import Extension, Parameter, ParameterKind, Parameters
except ImportError:  # the extra `docs` is not installed; the tests use only `one_each`
    Extension = object

# Code and emphasis, which are left alone, or a star behind a letter, a quote or a comma.
STAR = re.compile(r"`[^`]*`|(?<!\w)\*\w[^*\n]*(?<=\w)\*(?!\w)|(?<=[\w',\"])\*")
SECTION = re.compile(r"^( *)(?:Args|Attributes):\n(?:\1  .*\n?| *\n)*", re.MULTILINE)


def one_each(text: str) -> str:
    """Return a docstring with one entry per name in Args and Attributes, and plain stars."""

    def entries(match: re.Match) -> str:
        return "\n".join(f"{match[1]}{name}: {match[3]}" for name in match[2].split(", "))

    def section(match: re.Match) -> str:
        indent, names = f"{match[1]}  ", r"\*{0,2}\w+(?:, \*{0,2}\w+)+"
        several = rf"^({indent})({names}): (.*(?:\n{indent} .*)*)"
        return re.sub(several, entries, match[0], flags=re.MULTILINE)

    return STAR.sub(lambda m: r"\*" if m[0] == "*" else m[0], SECTION.sub(section, text))


def imported(path: str) -> tuple[str, list[inspect.Parameter]] | None:
    """Return docstring and parameters of a function with a signature of its own, else None."""
    module, _, name = path.rpartition(".")
    function = getattr(importlib.import_module(module), name, None)
    if not hasattr(function, "__signature__"):
        return None
    return inspect.getdoc(function) or "", [*inspect.signature(function).parameters.values()]


def annotation(parameter: inspect.Parameter) -> str:
    """Return a parameter's type without module names."""
    return re.sub(
        r"\b(?:\w+\.)+(?=\w)", "", str(parameter).split(":", 1)[1].split(" = ")[0]
    ).strip()


class OneEach(Extension):
    """Applies `one_each` to every docstring."""

    def on_object(self, *, obj, **kwargs):
        known = obj.docstring and obj.is_function and obj.parent.is_module
        known = imported(obj.path) if known and "options" in obj.parameters else None
        if known is not None:
            obj.docstring.value, parameters = known
            obj.parameters = Parameters(
                *(
                    Parameter(
                        one.name,
                        annotation=annotation(one),
                        kind=ParameterKind(one.kind.description),
                        default=None if one.default is one.empty else repr(one.default),
                    )
                    for one in parameters
                )
            )
        if obj.docstring:
            obj.docstring.value = one_each(obj.docstring.value)
