"""MkDocs hooks: pages outside docs/, notebooks, links out of docs/, and formulas.

Pages are written for readers of the repository, where README.md links to docs/running.md and a page
to ../tests/algorithms. On the site, links between pages lead from page to page, and README.md is
docs/index.md. A link to another file leads to the repository, `repo_url` of mkdocs.yml; without
one, its label stays as text. Formulas, `$...$` in a line and `$$...$$` apart, become MathML, which
browsers show without a script.
"""

import json
import posixpath
import re
from collections.abc import Callable, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# Files outside docs/ or in another format, and their pages on the site.
MOVED = {
    "BUILD.md": "building.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
}
NOTEBOOKS = {"docs/tutorial.ipynb": "tutorial.md", "docs/papers.ipynb": "papers.md"}
FENCE = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[((?:[^\[\]]|\[[^\[\]]*\])*)\]\(([^)\s]+)\)")
# Code in a line, which is left alone, or a formula: $$...$$ or $...$.
FORMULA = re.compile(
    r"`[^`]*`|\$\$(?P<apart>.+?)\$\$|\$(?P<inline>[^\s$](?:[^$\n]*[^\s$])?)\$", re.DOTALL
)
MARK = re.compile(r"^<!-- needs: [^>]*-->\n", re.MULTILINE)


def relinked(text: str, page: str, places: Mapping[str, str], repository: str) -> str:
    """Return a page's text with links for the site.

    Args:
      text: Markdown; fenced blocks are not changed.
      page: the page's path in the repository.
      places: pages of the site, by path in the repository.
      repository: address of the repository; empty for none.

    Raises:
      ValueError: a link to a file that the repository lacks.
    """

    def lead(match: re.Match) -> str:
        label, link = match.groups()
        file, hash_, anchor = link.partition("#")
        if not file or re.match(r"\w+:", link):
            return match[0]
        target = posixpath.normpath(posixpath.join(posixpath.dirname(page), file))
        if target in places:
            here = posixpath.dirname(places[page]) or "."
            return f"[{label}]({posixpath.relpath(places[target], here)}{hash_}{anchor})"
        if target.startswith("..") or not (ROOT / target).exists():
            raise ValueError(f"{page} links to {link}, which is not there")
        return f"[{label}]({repository.rstrip('/')}/blob/HEAD/{target})" if repository else label

    parts = FENCE.split(MARK.sub("", text))  # every second one is a fenced block
    parts[::2] = (LINK.sub(lead, part) for part in parts[::2])
    return "".join(parts)


def typeset(text: str, convert: Callable[..., str]) -> str:
    """Return a page's text with formulas as MathML.

    Args:
      text: Markdown; fenced blocks and code are not changed.
      convert: from LaTeX, with `display` "block" or "inline", to MathML.

    Raises:
      ValueError: a formula with a command that `convert` leaves as it is.
    """

    def formula(match: re.Match) -> str:
        latex = match["apart"] or match["inline"]
        if not latex:
            return match[0]
        converted = convert(latex.strip(), display="block" if match["apart"] else "inline")
        if "\\" in converted or "<mi>&<" in converted:
            raise ValueError(f"a formula has an unknown command: {latex.strip()}")
        tag = "div" if match["apart"] else "span"
        return f"<{tag}>{converted}</{tag}>"

    parts = FENCE.split(text)
    parts[::2] = (FORMULA.sub(formula, part) for part in parts[::2])
    return "".join(parts)


def notebook_page(text: str, name: str) -> str:
    """Return a notebook's cells as a Markdown page, with pictures docs/images/NAME_CELL.png."""
    parts = []
    for cell in json.loads(text)["cells"]:
        source, picture = "".join(cell["source"]), f"images/{name}_{cell['id']}.png"
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        if (ROOT / "docs" / picture).exists():
            parts.append(f"![Output of the cell above]({picture})")
    return "\n\n".join(parts) + "\n"


def _source(place: str) -> str:
    """Return the repository path of a page of the site."""
    known = {site: page for page, site in (MOVED | NOTEBOOKS).items()}
    return known.get(place, f"docs/{place}")


def on_files(files, config):
    """Add the pages of the repository's root and those of notebooks."""
    from mkdocs.structure.files import File

    for page, place in MOVED.items():
        files.append(File.generated(config, place, abs_src_path=str(ROOT / page)))
    for notebook, place in NOTEBOOKS.items():
        path = ROOT / notebook
        text = notebook_page(path.read_text(encoding="utf-8"), path.stem)
        files.append(File.generated(config, place, content=text))
    return files


def on_page_markdown(markdown, page, config, files):
    """Rewrite a page's links and formulas for the site."""
    from latex2mathml.converter import convert

    places = {_source(file.src_uri): file.src_uri for file in files}
    places |= {"README.md": "index.md"} | NOTEBOOKS
    text = relinked(markdown, _source(page.file.src_uri), places, config.repo_url or "")
    return typeset(text, convert)
