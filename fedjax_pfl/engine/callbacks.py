"""What is called between the chunks of a run, and what it is told."""

from collections.abc import Callable
from typing import NamedTuple

from fedjax_pfl.results.result import Result
from fedjax_pfl.utils.metric_names import ACCURACY, Measure


class Progress(NamedTuple):
    """The argument of a progress callback, called after each chunk.

    A simulation that continues from a checkpoint calls it first of all with no new round:
    `round == since`.

    Attributes:
      round: rounds done.
      rounds: rounds of the run.
      accuracy: mean over runs and clients of the last scored personalized test accuracy, or None;
        of another task the measure that it leads with.
      seconds: wall time since the first round, without compilation.
      since: rounds that were done before this chunk.
      result: makes the `Result` of the rounds done so far, without models.
      measure: what `accuracy` is.
      runs: how many `accuracy` is the mean of, seeds times settings.
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
        """Rounds, the measure, pace and time left."""
        if self.round == self.since:
            return f"continuing after round {self.round} of {self.rounds}"
        pace = self.round / max(self.seconds, 1e-9)
        left = _duration((self.rounds - self.round) / pace)
        measure, value = self.measure, "-"
        if self.accuracy is not None:
            value = measure.shown(measure.scale * self.accuracy) + " %" * measure.fraction
            value += f" (mean of {self.runs} runs)" if self.runs > 1 else ""
        return (
            f"round {self.round}/{self.rounds}, {measure.said} {value}, {pace:.2f} rounds/s, "
            f"{left} left"
        )


def _duration(seconds: float) -> str:
    """Seconds as m:ss or h:mm:ss."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
