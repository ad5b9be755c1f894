"""Command lines of tools that take paths and switches."""

import argparse
from collections.abc import Sequence
from pathlib import Path


def parse(
    tool: str,
    meaning: str | None,
    argv: Sequence[str] | None,
    paths: Sequence[str],
    more: str = "",
    switches: Sequence[str] = (),
) -> argparse.Namespace:
    """Parse a command line; `--help` and a wrong one end the process.

    Args:
      tool: the name of the module.
      meaning: the text of `--help`.
      argv: the words, whose first is the program; None for those of the process.
      paths: names of the arguments, each a path.
      more: name of a last argument of any number of paths.
      switches: names of options without a value.
    """
    parser = argparse.ArgumentParser(
        prog=f"python -m tools.{tool}", description=meaning, allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    for name in paths:
        parser.add_argument(name, type=Path)
    if more:
        parser.add_argument(more, type=Path, nargs="*")
    for name in switches:
        parser.add_argument(f"--{name}", action="store_true")
    return parser.parse_args(None if argv is None else argv[1:])
