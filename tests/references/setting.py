"""What every reference is given: clients, their samples, and what the library drew for them."""

from dataclasses import dataclass, field, replace
from typing import Any

from tests.references.local_sgd import sgd


@dataclass(frozen=True)
class Setting:
    """A federation and its rounds, as plain arrays.

    Attributes:
      initial: the model that everybody begins with; a list where every client has its own.
      clients: one dict per client; "samples" has the indices of its training samples.
      rounds: how many rounds.
      x, y: the samples of all clients, addressed by the batches.
      sizes: n_i, the number of training samples of every client.
      cohorts: per round, the participating clients; nobody leaves all models as they are.
      batches: batches[t][i] is the list of batches of client i in round t; a client without any
        sends back what it received, with its full weight.
      learning_rate: one rate per round.
      starts, arrivals: per round, the clients that begin to train and those whose uploads arrive;
        they differ from the cohorts where uploads may be late.
    """

    initial: Any
    clients: list
    rounds: int
    x: Any
    y: Any
    sizes: Any
    cohorts: list
    batches: list
    learning_rate: Any
    starts: list = field(default_factory=list)
    arrivals: list = field(default_factory=list)

    def train(self, model, t, i, *, batches=None, rate=None, **more):
        """`model` after client i's local SGD in round t.

        Args:
          batches: the steps' samples; the client's `batches` of the round by default.
          rate: the round's learning rate by default.
          **more: `extra_gradient` and `layers` of `local_sgd.sgd`.
        """
        batches = self.batches[t][i] if batches is None else batches
        rate = self.learning_rate[t] if rate is None else rate
        return sgd(model, batches, self.x, self.y, rate, **more)

    def but(self, **changes):
        """The same setting with some attributes replaced."""
        return replace(self, **changes)
