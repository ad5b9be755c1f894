"""The sections of reports: tables with their notes and a picture, in Markdown, LaTeX and CSV."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from fedjax_pfl.results.table import Table, latex_escaped

from .run_files import write_csv, write_picture, write_text

if TYPE_CHECKING:
    import pandas as pd  # slow imports: only where they are used
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Section:
    """A part of a report.

    Attributes:
      title: its heading.
      name: of its files, or "".
      tables: each with its own notes.
      notes: paragraphs below.
      picture: or None.
      numbers: for the CSV file, by default those of the tables.
    """

    title: str
    name: str = ""
    tables: Sequence[Table] = ()
    notes: Sequence[str] = ()
    picture: "Figure | None" = None
    numbers: "pd.DataFrame | None" = None

    def paragraphs(self) -> list[str]:
        """Return all notes, each once."""
        notes = [note for table in self.tables for note in table.notes]
        return [*dict.fromkeys(notes), *self.notes]

    def to_markdown(self, heading: str = "## ") -> str:
        """Format with a heading."""
        parts = [f"{heading}{self.title}", *(table.to_markdown() for table in self.tables)]
        parts += [f"![{self.title}]({self.name}.png)"] if self.picture is not None else []
        return "\n\n".join([*parts, *self.paragraphs()])

    def to_latex(self) -> str:
        """Format as floats for the packages booktabs and graphicx, with the notes below."""
        floats = [("table", replace(table, notes=[]).to_latex("c")) for table in self.tables]
        if self.picture is not None:
            picture = rf"\includegraphics[width=\linewidth]{{{self.name}.png}}"
            floats.append(("figure", f"{picture}\n"))
        parts = [
            f"\\begin{{{kind}}}\n\\centering\n\\caption{{{latex_escaped(self.title)}}}\n"
            f"{body}\\end{{{kind}}}\n"
            for kind, body in floats
        ]
        return "\n".join([*parts, *(f"{latex_escaped(one)}\n" for one in self.paragraphs())])

    def write_numbers(self, folder: Path) -> None:
        """Write `NAME.csv` and `NAME.png`, as far as there are tables and a picture."""
        if self.name and self.tables:
            import pandas as pd

            numbers = pd.concat([table.to_pandas() for table in self.tables])
            write_csv(
                folder / f"{self.name}.csv", numbers if self.numbers is None else self.numbers
            )
        if self.picture is not None:
            write_picture(folder / f"{self.name}.png", self.picture)

    def write(self, folder: Path) -> None:
        """Write the same with `NAME.md` and `NAME.tex`, the tables without floats."""
        self.write_numbers(folder)
        write_text(folder / f"{self.name}.md", f"{self.to_markdown('')}\n")
        tables = "\n".join(table.to_latex("c") for table in self.tables)
        write_text(folder / f"{self.name}.tex", f"% {self.title}\n{tables}")
