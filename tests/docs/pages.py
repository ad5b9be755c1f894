"""The fenced blocks of the Markdown pages, and the commands that their shell blocks give.

A block that can't be run unchanged has a comment in the line above its fence,
`<!-- needs: WHAT -->`, WHAT being one of `NEEDS`; a command with `--data_dir=` needs data anyway.
"""

import re
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(ROOT.glob("*.md")) + sorted((ROOT / "docs").rglob("*.md"))
NEEDS = ("data", "network", "accelerator", "minutes", "torch")
SHELLS = ("bash", "sh")
# What an installation calls each `python -m experiments.NAME`.
NAMES = (
    "run", "sweep", "compare", "partition", "reproduce", "figures", "study", "pretrain",
)  # fmt: skip
COMMANDS = {f"pfl-{name}": f"experiments.{name}" for name in NAMES}
PROGRAMS = ("git", "cd", "python", "python3", "pip", "make", ".venv/bin/python", ".venv/bin/pip",
            ".ci/run", ".venv/bin/pre-commit", "tensorboard", *COMMANDS)  # fmt: skip
BLOCK = re.compile(
    r"^(?:<!-- needs: (?P<need>[^>]*?) -->\n)?```(?P<language>\w*)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
# Bash expands variables, loops and quotes; each command says what it was given and does nothing.
STAND_IN = """
set -eu
PATH=
said() { local word; for word in "$NEED" "$@"; do printf '%s\\0' "$word"; done; printf '\\1\\0'; }
command_not_found_handle() { echo "no command of this project: $1" >&2; exit 1; }
""" + "\n".join(f'{name}() {{ said {name} "$@"; }}' for name in PROGRAMS)
STAND_IN += "\nset -r"  # nothing else can be started or written to


class Block(NamedTuple):
    """A fenced block: its language ("" without), what it needs ("" for nothing), and its text."""

    language: str
    need: str
    text: str


class Command(NamedTuple):
    """A command's words as the shell hands them over, and what it needs ("" for nothing)."""

    words: tuple[str, ...]
    need: str


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def blocks(text: str) -> list[Block]:
    """All fenced blocks in their order.

    Raises:
      ValueError: a mark that names something unknown, or stands above no block.
    """
    result = [Block(m["language"], m["need"] or "", m["text"]) for m in BLOCK.finditer(text)]
    needs = [block.need for block in result if block.need]
    marks = re.findall(r"^<!-- needs: ([^>]*?) -->", text, re.MULTILINE)
    if marks != needs or set(needs) - set(NEEDS):
        raise ValueError(f"marks are one of {NEEDS}, in the line above a block")
    return result


def commands(text: str) -> list[Command]:
    """What the shell blocks of a page give, one after the other as one script.

    Raises:
      ValueError: no shell script, or one that calls anything besides `PROGRAMS`.
    """
    parts = [f"NEED={one.need}\n{one.text}" for one in blocks(text) if one.language in SHELLS]
    if not parts:
        return []
    # What runs beside the next command would write its words among the other's.
    parts = [re.sub(r" &$", "", part, flags=re.MULTILINE) for part in parts]
    words = [shutil.which("bash"), "-c", "\n".join([STAND_IN, *parts])]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    if done.returncode:
        raise ValueError(done.stderr)
    result = []
    for words in done.stdout.split("\0\1\0")[:-1]:
        need, *given = words.split("\0")
        if not need and any(word.startswith("--data_dir=") for word in given):
            need = "data"
        result.append(Command(tuple(given), need))
    return result


def python_blocks(text: str) -> list[str]:
    """Blocks of Python that need nothing."""
    return [one.text for one in blocks(text) if one.language == "python" and not one.need]


def run_python(page: str, names: dict | None = None) -> dict:
    """Run a page's blocks of Python that need nothing; return what they define."""
    names = {"__name__": "page"} if names is None else names
    for block in python_blocks((ROOT / page).read_text(encoding="utf-8")):
        exec(compile(block, page, "exec"), names)
    return names


def spans(text: str) -> list[str]:
    """Inline code outside blocks."""
    return re.findall(r"`([^`\n]+)`", BLOCK.sub("", text))
