"""Progress displays: a line of text, and live curves in a notebook."""

import io
import sys
import time
from collections.abc import Callable
from typing import Any

from fedjax_pfl.engine.callbacks import Callback, Progress, ProgressCallback, check_takes_progress
from fedjax_pfl.execution import processes
from fedjax_pfl.results.result import Result
from fedjax_pfl.utils.boundary import checked

ALLOWED = "a function of a Progress, LiveCurves().of(NAME), True for a line of text, or None"
EVERY = 5.0  # seconds between lines that are not rewritten
WIDTH = 78  # columns; shorter lines are padded to cover the previous one


class Line:
    """A line of text that is rewritten in place; in a file, a new line every few seconds.

    Its first text is that the program compiles.

    Args:
      name: of the simulation.
    """

    def __init__(self, name: str):
        self.name, self._open, self._shown = name, False, time.monotonic()
        self._in_place = sys.stdout.isatty() or notebook() is not None
        self._said = self._last = ""
        self._say("compiling")

    def on_round_end(self, progress: Progress) -> None:
        now = time.monotonic()
        self._last, edge = str(progress), progress.round == progress.since  # where it continues
        if self._in_place or edge or now - self._shown >= EVERY:
            self._shown = now
            self._say(self._last)

    def on_run_end(self) -> None:
        """Say the last round, and end the line."""
        if self._last not in ("", self._said):
            self._say(self._last)
        if self._open:
            print(flush=True)
        self._open = False

    def _say(self, text: str) -> None:
        self._said, line = text, f"{self.name}: {text}"
        if self._in_place:
            print(f"\r{line:{WIDTH}}", end="", flush=True)
            self._open = True
        else:
            print(line, flush=True)


class LiveCurves:
    """Accuracy curves of running simulations in a notebook, one curve for each.

    `pfl.simulate(..., progress=curves.of("fedavg"))` adds a line to `curves`. Outside a
    notebook only the text is printed.

    Args:
      every: seconds between two pictures.
    """

    @checked
    def __init__(self, every: float = 3.0):
        self.every = every
        self.results: dict[str, Result] = {}
        self._picture: Any = None  # of IPython, where it is shown

    def of(self, name: str) -> "_Curve":
        """Return the callback of one simulation; it reports at once that the program compiles."""
        return _Curve(self, name)

    def show(self) -> None:
        """Draw the curves so far in place of the previous picture."""
        display = notebook()
        drawn = {name: one for name, one in self.results.items() if one.is_scored}
        if display is None or not drawn:
            return
        from fedjax_pfl.results import plots  # slow import

        file = io.BytesIO()
        plots.accuracy_curves(drawn, setting=0).savefig(file, format="png")
        image = display.Image(data=file.getvalue(), format="png")
        if self._picture is None:
            self._picture = display.display(image, display_id=True)
        else:
            self._picture.update(image)


class _Curve:
    """One line of live curves."""

    def __init__(self, curves: LiveCurves, name: str):
        self.curves, self.name, self.line = curves, name, Line(name)
        self._drawn, self._last = time.monotonic(), None

    def on_round_end(self, progress: Progress) -> None:
        self.line.on_round_end(progress)
        self._last = progress.result
        if time.monotonic() - self._drawn >= self.curves.every:
            self._draw()

    def on_run_end(self) -> None:
        self._draw()
        self.line.on_run_end()

    def _draw(self) -> None:
        if self._last is not None:
            self.curves.results[self.name] = self._last()
            self.curves.show()
        self._drawn, self._last = time.monotonic(), None


def shown(
    progress: Callable[[Progress], None] | Callback | bool | None, name: str
) -> list[Callback]:
    """Return the callbacks for `progress`: True is a line of text, in the first process.

    Raises:
      InputError: it can't be called.
    """
    if isinstance(progress, bool):
        return [Line(name)] if progress and processes.is_first() else []
    if progress is None or isinstance(progress, Callback):
        return [] if progress is None else [progress]
    check_takes_progress("progress", progress, ALLOWED)
    return [ProgressCallback(progress)]


def notebook() -> Any:
    """Return `IPython.display` in a notebook, else None."""
    python = sys.modules.get("IPython")
    shell = None if python is None else python.get_ipython()
    if shell is None or not hasattr(shell, "kernel"):
        return None
    import IPython.display  # pyright: ignore[reportMissingImports] - there, as it runs

    return IPython.display
