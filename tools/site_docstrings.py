"""Extension of Griffe, which reads docstrings for the site: splits entries of several names.

    Args:
      momentum, weight_decay: of plain SGD.

are two parameters with one description; Griffe would read one parameter of that name.
"""

import re

try:
    from griffe import Extension
except ImportError:  # the extra `docs` is not installed; the tests read `one_each` alone
    Extension = object

SECTION = re.compile(r"^( *)(?:Args|Attributes):$")


def one_each(text: str) -> str:
    """A docstring with an entry for each name of its Args and Attributes sections."""
    lines, inside, indent = [], False, ""
    names: list[str] = []
    entry: list[str] = []

    def end():
        for name in names:
            lines.append(f"{indent}{name}: {entry[0]}")
            lines.extend(entry[1:])
        names.clear()
        entry.clear()

    for line in text.splitlines():
        section = SECTION.match(line)
        depth = len(line) - len(line.lstrip())
        if inside and line.strip() and depth < len(indent):
            end()
            inside = False
        if section:
            inside, indent = True, section[1] + "  "
            lines.append(line)
            continue
        found = re.match(rf"^{indent}(\*{{0,2}}\w+(?:, \*{{0,2}}\w+)*): (.*)$", line)
        if inside and depth == len(indent) and found:
            end()
            names += found[1].split(", ")
            entry.append(found[2])
        elif entry:
            entry.append(line)
        else:
            lines.append(line)
    end()
    return "\n".join(lines)


class OneEach(Extension):
    """Applies `one_each` to every docstring."""

    def on_object(self, *, obj, **kwargs):
        if obj.docstring:
            obj.docstring.value = one_each(obj.docstring.value)
