"""Callbacks between chunks of rounds, and the progress that they receive."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

from fedjax_pfl.results.result import Result
from fedjax_pfl.utils.errors import InputError
from fedjax_pfl.utils.metric_names import ACCURACY, Measure


class Progress(NamedTuple):
    """Argument of callbacks, which are called after each chunk of rounds.

    A simulation that continues from a checkpoint first calls them without a new round, with
    `round == since`.

    Attributes:
      round: rounds done.
      rounds: rounds of the run.
      accuracy: the last personalized test accuracy, the mean over runs and clients, or None; of
        another task its main metric.
      seconds: wall time since the first round, without compilation.
      since: rounds that were done before this chunk.
      result: makes the `Result` of the rounds done so far, without models.
      measure: the measure of `accuracy`.
      runs: the number of runs, seeds times settings.
    """

    round: int
    rounds: int
    accuracy: float | None
    seconds: float
    since: int = 0
    result: Callable[[], Result] | None = None
    measure: Measure = ACCURACY
    runs: int = 1

    def __str__(self) -> str:
        """Format rounds, measure, pace and time left."""
        if self.round == self.since:
            return f"continuing after round {self.round} of {self.rounds}"
        pace = self.round / max(self.seconds, 1e-9)
        left = _duration((self.rounds - self.round) / pace)
        measure, value = self.measure, "-"
        if self.accuracy is not None:
            value = measure.shown(measure.scale * self.accuracy) + " %" * measure.fraction
            value += f" (mean of {self.runs} runs)" if self.runs > 1 else ""
        return (
            f"round {self.round}/{self.rounds}, {measure.label} {value}, {pace:.2f} rounds/s, "
            f"{left} left"
        )


def _duration(seconds: float) -> str:
    """Format seconds as m:ss or h:mm:ss."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


@runtime_checkable
class Callback(Protocol):
    """An object that `simulate(..., callbacks=[...])` calls between chunks of rounds.

    It may also have a method `on_run_end()`, which is called once after the rounds, also where
    they end with an error.
    """

    def on_round_end(self, progress: Progress) -> bool | None:
        """Handle the end of a chunk: of every round, unless `chunk` is larger.

        Returns:
          True to end the rounds, as `stop` does. The answer to a call without a new round, and to
          the one after the last round, is ignored.
        """
        ...


@dataclass(frozen=True)
class StopCallback:
    """The `stop` of `simulate`, called after new rounds except the last ones."""

    function: Callable[[Progress], bool]

    def on_round_end(self, progress: Progress) -> bool | None:
        return progress.since < progress.round < progress.rounds and self.function(progress)


@dataclass(frozen=True)
class ProgressCallback:
    """The `progress` of `simulate`, which can't end the rounds."""

    function: Callable[[Progress], None]

    def on_round_end(self, progress: Progress) -> None:
        self.function(progress)


def check_takes_progress(what: str, function: Any, allowed: str) -> None:
    """Raise `InputError` unless the function can be called with one argument."""
    try:
        inspect.signature(function).bind(None)
    except TypeError:
        text = f"{what} must be {allowed}, got one that can't take an argument."
        raise InputError(text) from None
    except ValueError:  # of a callable without a known signature
        return
