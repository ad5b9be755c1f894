"""Reports in Markdown as one HTML file that needs no server and no other file."""

import base64
import html
import re
from pathlib import Path
from urllib.parse import unquote

from markdown_it import MarkdownIt

STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; }
table { border-collapse: collapse; margin: 1rem 0; display: block; overflow-x: auto; }
th, td { border: 1px solid #ccc; padding: .25rem .6rem; text-align: right; }
th:first-child, td:first-child { text-align: left; }
img { max-width: 100%; }
pre { white-space: pre-wrap; background: #f4f4f4; padding: .6rem; }
"""


def page(title: str, text: str, folder: Path) -> str:
    """Convert a report to HTML with its pictures inside; HTML in it is escaped.

    Args:
      title: of the page.
      text: in Markdown; underlined cells of tables stay so.
      folder: of the pictures.
    """

    def embedded(match: re.Match) -> str:
        data = base64.b64encode((folder / unquote(match[1])).read_bytes()).decode()
        return f'src="data:image/png;base64,{data}"'

    reader = MarkdownIt("commonmark", {"html": False}).enable("table")
    body = re.sub(r'src="([^"]*)"', embedded, reader.render(text))
    body = re.sub(r"&lt;(/?)u&gt;", r"<\1u>", body)
    head = f'<meta charset="utf-8"><title>{html.escape(title)}</title><style>{STYLE}</style>'
    return f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body>\n{body}\n</body></html>\n'
