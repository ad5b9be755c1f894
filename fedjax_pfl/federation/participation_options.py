"""Options of participation: sampling, stragglers, clients that arrive and leave."""

from collections.abc import Mapping
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_pfl.federation.option_groups import OptionGroup, option
from fedjax_pfl.federation.participation import Participation
from fedjax_pfl.utils.conversions import convert
from fedjax_pfl.utils.errors import InputError, require

SAMPLINGS = ("fixed", "poisson")
STRAGGLER_SCHEDULES = ("code", "paper")
BEYOND = 1e-12  # probability that a Poisson cohort is cut


@dataclass(frozen=True)
class ParticipationOptions(OptionGroup):
    """Options of participation, see `Participation`."""

    participation: float = option(
        1.0, "fraction of the clients that take part in a round", within="(0, 1]", noun="a fraction"
    )
    stragglers: Mapping[int, int] | None = option(
        None,
        "delay in rounds of each straggler, by its position (not its id), such as {0: 1, 3: 2}",
    )
    straggler_schedule: str = option(
        "code",
        "rounds of a straggler with delay d: {choices}. 'code' (PLGA's): its upload arrives d "
        "rounds after it begins, the next round is on time, a cycle of d + 2; 'paper' (PLGA's "
        "text): without the round on time, a cycle of d + 1",
        choices=STRAGGLER_SCHEDULES,
        needs="stragglers",
    )
    arrivals: Mapping[int, int] | None = option(
        None,
        "first round, counted from 1, of each client that arrives later, by its position, such as "
        "{0: 20}",
    )
    departures: Mapping[int, int] | None = option(
        None, "last round of each client that leaves, by its position, such as {0: 30}"
    )
    sampling: str = option(
        "fixed",
        "sampling of a round's clients: {choices}; 'fixed' draws as many in each round, 'poisson' "
        "each client independently, as accountants of privacy assume",
        choices=SAMPLINGS,
    )

    def validate(self) -> None:
        for name in ("stragglers", "arrivals", "departures"):
            value, allowed = getattr(self, name), "a dict such as {3: 2}"
            named = value is None or isinstance(value, Mapping)
            require(named, name, type(value).__name__, allowed)
        if self.stragglers and self.changing:
            raise InputError(
                "Stragglers need the same clients in all rounds: give no arrivals or departures."
            )
        if self.stragglers and self.participation < 1:
            raise InputError(
                f"Stragglers need a participation of 1, got {self.participation}: a late upload of "
                "a client that is not sampled when it arrives would be lost."
            )

    @property
    def changing(self) -> bool:
        """Whether clients arrive or leave."""
        return bool(self.arrivals or self.departures)

    def notes(self) -> list[str]:
        """Return sentences on changing clients, and sampling without effect, for tables."""
        notes = []
        if self.sampling == "poisson" and self.participation == 1:
            notes = ["Poisson sampling at a participation of 1 takes all clients in every round"]
        parts = [
            f"{len(rounds)} client{'s' * (len(rounds) > 1)} {verb}{'s' * (len(rounds) == 1)}"
            for verb, rounds in (("arrive", self.arrivals), ("leave", self.departures))
            if rounds
        ]
        if parts:
            notes.append(f"{' and '.join(parts)} during the run; each is scored while it is there")
        return notes

    def window(self, num_clients: int) -> jax.Array | None:
        """Return the rounds between which each client is there, see `Participation`.

        Raises:
          InputError: no such client, or a round that is not one.
        """
        if not self.changing:
            return None
        window = np.tile(np.array([0, 2**31 - 1], np.int32), (num_clients, 1))
        given = (("arrival", 0, self.arrivals), ("departure", 1, self.departures))
        for what, column, rounds in given:
            for row, number in (rounds or {}).items():
                row = convert(what, row, int)
                require(0 <= row < num_clients, what, row, f"a client in 0..{num_clients - 1}")
                first = convert(f"{what} of client {row}", number, int)
                allowed = "a round, counted from 1"
                require(1 <= first < 2**31, f"{what} of client {row}", number, allowed)
                window[row, column] = first - (1 - column)
        empty = np.flatnonzero(window[:, 0] >= window[:, 1])
        if len(empty):
            first, last = window[empty[0]].tolist()
            raise InputError(
                f"Client {empty[0]} arrives in round {first + 1} and leaves after round {last}, so "
                "it is never there."
            )
        return jnp.asarray(window)

    def build(self, num_clients: int) -> Participation:
        """Return the participation of a number of clients, by `checked` options.

        The cohort's size is rounded to the nearest whole number, at least one.

        Raises:
          InputError: there is no such client, or its delay is not allowed.
        """
        delay = np.zeros((num_clients,), np.int32)
        for row, rounds in (self.stragglers or {}).items():
            row = convert("straggler", row, int)
            require(0 <= row < num_clients, "straggler", row, f"a client in 0..{num_clients - 1}")
            what = f"delay of straggler {row}"
            late = convert(what, rounds, int)
            require(1 <= late < 2**31 - 2, what, rounds, "at least 1 round, and whole")
            delay[row] = late
        # Rounds half up: Python's round() takes 2.5 to 2 but 3.5 to 4.
        rate = float(self.participation)
        size = max(1, int(np.floor(rate * num_clients + 0.5)))
        poisson = rate if self.sampling == "poisson" and rate < 1 else None
        if poisson is not None:
            size = max(1, poisson_room(num_clients, rate))
        return Participation(
            delay=jnp.asarray(delay),
            cohort_size=size,
            poisson=poisson,
            punctual=not self.stragglers,
            schedule=self.straggler_schedule,
            window=self.window(num_clients),
        )


def poisson_room(num_clients: int, rate: float) -> int:
    """Return the least number that Binomial(num_clients, rate) rarely exceeds, see `BEYOND`."""
    count = np.arange(num_clients + 1)
    factorials = np.cumsum(np.log(np.maximum(count, 1)))  # their logarithms
    ways = factorials[-1] - factorials - factorials[::-1]
    exactly = np.exp(ways + count * np.log(rate) + count[::-1] * np.log1p(-rate))
    return int(np.sum(np.cumsum(exactly[::-1]) > BEYOND)) - 1
