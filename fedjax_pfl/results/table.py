"""Tables of numbers, as Markdown, aligned text, LaTeX, HTML and CSV."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from fedjax_pfl.utils.metric_names import Measure

if TYPE_CHECKING:
    import pandas as pd  # slow imports: only where they are used

BOLD, UNDERLINED = "bold", "underlined"
MISSING = "-"
Row = Mapping[str, Any]
_MARKDOWN = {BOLD: "**{}**", UNDERLINED: "<u>{}</u>"}
_LATEX = {BOLD: r"\textbf{{{}}}", UNDERLINED: r"\underline{{{}}}"}


def brief(value: Any) -> str:
    """Round floats to three digits; return other values unchanged."""
    return f"{value:.3g}" if isinstance(value, float) else str(value)


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
      key: the key of its values in the rows.
      title: the heading for readers.
      text: formats the cell of a row that has a value; by default `brief` of the value.
      name: the heading in CSV files, by default the key.
      shown: whether readers see it; other columns are only in CSV files.
      left: whether cells are aligned left, as those of a table's first column always are.
    """

    key: str
    title: str
    text: Callable[[Row], str] | None = None
    name: str | None = None
    shown: bool = True
    left: bool = False

    def cell(self, row: Row) -> str:
        """Format a row's value; missing values (None) are "-"."""
        value = row.get(self.key)
        if value is None:
            return MISSING
        return brief(value) if self.text is None else self.text(row)


def measured(
    key: str, title: str, measure: Measure, scale: float = 1.0, name: str | None = None
) -> Column:
    """Return a column of a measure's values, multiplied by `scale`."""
    return Column(key, title, lambda row: measure.shown(scale * row[key]), name)


@dataclass(frozen=True)
class Table:
    """Rows of values, with notes.

    Attributes:
      columns: in order; those whose key is in no row are left out.
      rows: values by the columns' keys; None or no key where one is missing.
      notes: sentences, a paragraph each.
      emphasis: `BOLD` or `UNDERLINED` by (index of the row, key).
    """

    columns: Sequence[Column]
    rows: Sequence[Row]
    notes: Sequence[str] = ()
    emphasis: Mapping[tuple[int, str], str] = field(default_factory=dict)

    @classmethod
    def of_cells(cls, heading: Sequence[str], body: Sequence[Sequence[Any]]) -> "Table":
        """Return a table from a heading and cells by position."""
        columns = [Column(str(k), title, name=title) for k, title in enumerate(heading)]
        rows = [{str(k): cell for k, cell in enumerate(line)} for line in body]
        return cls(columns, rows)

    @property
    def _filled(self) -> list[Column]:
        """Return the columns with some value; all columns of a table without rows."""
        if not self.rows:
            return list(self.columns)
        return [one for one in self.columns if any(one.key in row for row in self.rows)]

    @property
    def _visible(self) -> list[Column]:
        """Return the columns that readers see."""
        return [one for one in self._filled if one.shown]

    def without(self, keys: Collection[str]) -> "Table":
        """Return the table without some columns."""
        return replace(self, columns=[one for one in self.columns if one.key not in keys])

    @property
    def cells(self) -> list[list[str]]:
        """Return the heading and the rows as text, without emphasis."""
        shown = self._visible
        body = [[one.cell(row) for one in shown] for row in self.rows]
        return [[one.title for one in shown], *body]

    def _emphasized(self, forms: Mapping[str, str], escaped: Callable[[str], str]) -> list:
        """Return the rows without the heading, in a markup."""
        return [
            [
                forms.get(self.emphasis.get((k, one.key), ""), "{}").format(escaped(one.cell(row)))
                for one in self._visible
            ]
            for k, row in enumerate(self.rows)
        ]

    def to_markdown(self) -> str:
        """Format as a table of GitHub's Markdown, without notes.

        A bar in a cell is escaped, and where cells are bold an asterisk, too.
        """

        def escaped(text: str) -> str:
            text = text.replace("|", r"\|")
            return text.replace("*", r"\*") if self.emphasis else text

        first, *others = self._visible
        rule = ["---", *("---" if one.left else "---:" for one in others)]
        heading = [escaped(one.title) for one in (first, *others)]
        lines = [heading, rule, *self._emphasized(_MARKDOWN, escaped)]
        return "\n".join(f"| {' | '.join(line)} |" for line in lines)

    def to_text(self) -> str:
        """Format as aligned columns, without notes."""
        widths = [max(map(len, column)) for column in zip(*self.cells, strict=True)]
        lines = []
        for first, *others in self.cells:
            cells = [cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True)]
            lines.append("  ".join([first.ljust(widths[0]), *cells]).rstrip())
        return "\n".join(lines)

    def to_latex(self, align: str = "r") -> str:
        """Format as a `tabular` for the package booktabs; notes come first, as comments.

        Args:
          align: of all columns but the first.
        """
        shown = self._visible
        rows = [[latex_escaped(one.title) for one in shown]]
        rows += self._emphasized(_LATEX, latex_escaped)
        heading, *body = (rf"{' & '.join(line)} \\" for line in rows)
        begin = rf"\begin{{tabular}}{{l{align * (len(shown) - 1)}}}"
        lines = [begin, r"\toprule", heading, r"\midrule", *body, r"\bottomrule", r"\end{tabular}"]
        return "\n".join([*(f"% {note}" for note in self.notes), *lines]) + "\n"

    def to_html(self) -> str:
        """Format as an HTML table, without notes."""
        import pandas as pd

        heading, *body = self.cells
        return pd.DataFrame(body, columns=heading).to_html(index=False, border=0)

    def to_pandas(self) -> "pd.DataFrame":
        """Return all values, unformatted; lists become text, separated by spaces."""
        import pandas as pd

        columns = self._filled
        names = [one.key if one.name is None else one.name for one in columns]
        values = [[_unnested(row.get(one.key)) for one in columns] for row in self.rows]
        return pd.DataFrame(values, columns=names, dtype=object)

    def to_csv(self, missing: str = "") -> str:
        """Format all values as CSV with a heading."""
        return self.to_pandas().to_csv(index=False, na_rep=missing, lineterminator="\r\n")


def _unnested(value: Any) -> Any:
    return " ".join(map(str, value)) if isinstance(value, list) else value


_LATEX_FORMS = str.maketrans({
    **{c: f"\\{c}" for c in "%_&#${}"},
    "\\": r"\textbackslash{}", "^": r"\textasciicircum{}", "~": r"\textasciitilde{}",
    "<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}",
    "±": r"$\pm$", "↓": r"$\downarrow$",
})  # fmt: skip


def latex_escaped(text: str) -> str:
    """Escape text for LaTeX."""
    return text.translate(_LATEX_FORMS)
