"""Options of concept drift."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from fedjax_pfl.data.dataset import Dataset
from fedjax_pfl.data.drift import ROTATE, SWAP, make_drift, schedule
from fedjax_pfl.data.federated import FederatedData, check_turns
from fedjax_pfl.data.partitions.partition import Partition
from fedjax_pfl.federation.option_groups import OptionGroup, option
from fedjax_pfl.utils.conversions import convert, is_list
from fedjax_pfl.utils.errors import InputError, require

NONE = "none"


@dataclass(frozen=True)
class DriftOptions(OptionGroup):
    """Options of concept drift, see `fedjax_pfl.data.drift`."""

    drift: str = option(
        NONE,
        "concept drift: {choices}; 'rotate' turns images by quarters, 'swap' exchanges two labels",
        choices=(NONE, ROTATE, SWAP),
    )
    drift_rounds: Sequence[int] | None = option(
        None,
        "rounds, counted from 1, that are the first of the next concept, such as [20, 40]",
        needs="drift",
    )
    drift_concepts: int = option(
        2, "number of concepts; after the last one the first comes again", low=2, needs="drift"
    )
    drift_share: float = option(
        1.0,
        "fraction of the clients that drift, the first ones",
        within="(0, 1]",
        noun="a fraction",
        needs="drift",
    )
    drift_stagger: int = option(
        0,
        "rounds between the change of one client and that of the next; 0: all at once",
        low=0,
        needs="drift",
    )

    def validate(self) -> None:
        given = self.drift_rounds
        require(given is None or is_list(given), "drift_rounds", given, "a list such as [20, 40]")
        if self.drift != NONE and not self._rounds:
            raise InputError(f"drift={self.drift!r} needs drift_rounds, such as [20, 40].")

    @property
    def _rounds(self) -> list[int]:
        return [] if self.drift_rounds is None else list(self.drift_rounds)

    def drifting(
        self, data: FederatedData, dataset: Dataset, partition: Partition
    ) -> FederatedData:
        """Return the data with drift.

        Raises:
          InputError: rounds that do not ascend, or samples that this drift can't change.
        """
        if self.drift == NONE:
            return data
        rounds = [convert("round of drift", one, int) for one in self._rounds]
        starts, concepts = schedule(
            data.num_clients, rounds, self.drift_concepts, self.drift_share, self.drift_stagger
        )
        if self.drift == ROTATE:
            check_turns(concepts, dataset.input_shape, "drift_concepts=2")
        elif not dataset.has_classes:
            raise InputError(f"drift='swap' needs classes, and {dataset.name!r} has none.")
        counts = np.asarray(data.class_counts)
        drift = make_drift(
            self.drift, starts, concepts, counts, partition.label_map, partition.turns
        )
        return replace(data, drift=drift).at_round(0)

    def notes(self) -> list[str]:
        """Return a sentence for tables."""
        if self.drift == NONE:
            return []
        first = ", ".join(map(str, self._rounds))
        every = "round" if self.drift_stagger == 1 else f"{self.drift_stagger} rounds"
        how = f", one client every {every}" if self.drift_stagger else ""
        share = "" if self.drift_share == 1 else f", {100 * self.drift_share:g} % of the clients"
        return [f"concept drift ({self.drift}) from round {first} on{how}{share}"]
