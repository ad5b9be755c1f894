"""Hooks of MkDocs: pages outside docs/, and links out of it.

The pages are written for a reader of the repository, where README.md links to docs/running.md and
a page to ../tests/algorithms. On the site README.md is the first page, and links between pages
lead from page to page. A link to another file leads to the repository, `repo_url` of mkdocs.yml;
without one, the file's name stays as text.
"""

import posixpath
import re
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# Pages of the repository's root and their names on the site.
MOVED = {
    "README.md": "index.md",
    "BUILD.md": "building.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
}
FENCE = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[((?:[^\[\]]|\[[^\[\]]*\])*)\]\(([^)\s]+)\)")
MARK = re.compile(r"^<!-- needs: [^>]*-->\n", re.MULTILINE)


def relinked(text: str, page: str, places: Mapping[str, str], repository: str) -> str:
    """A page's text with links for the site.

    Args:
      text: Markdown; fenced blocks are left alone.
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


def _source(place: str) -> str:
    """The path in the repository of a page of the site."""
    return next((page for page, moved in MOVED.items() if moved == place), f"docs/{place}")


def on_files(files, config):
    """Adds the pages of the repository's root."""
    from mkdocs.structure.files import File

    for page, place in MOVED.items():
        files.append(File.generated(config, place, abs_src_path=str(ROOT / page)))
    return files


def on_page_markdown(markdown, page, config, files):
    """Rewrites a page's links for the site."""
    places = {_source(file.src_uri): file.src_uri for file in files}
    return relinked(markdown, _source(page.file.src_uri), places, config.repo_url or "")
