"""Measurements of a simulation: arrays with the axes (seed, setting, round, client)."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedjax_pfl.utils.conversions import convert
from fedjax_pfl.utils.errors import require
from fedjax_pfl.utils.metric_names import ACCURACY, Measure


@dataclass(frozen=True)
class Measurements:
    """Fields of a `Result`, which describes them."""

    algorithm: str
    hyperparameters: dict[str, Any]
    training: dict[str, Any]
    seeds: tuple[int, ...]
    settings: dict[str, np.ndarray]
    num_clients: int
    num_parameters: int
    train_sizes: np.ndarray
    test_sizes: np.ndarray
    eval_rounds: np.ndarray
    scores: dict[str, np.ndarray]
    clients: dict[str, np.ndarray]
    scalars: dict[str, np.ndarray]
    copies_up: np.ndarray
    copies_down: np.ndarray
    blocks: tuple[str, ...]
    block_sizes: np.ndarray
    client_ids: np.ndarray
    item_bytes: int
    matrices: dict[str, np.ndarray]
    matrix_rounds: np.ndarray
    compile_seconds: float
    seconds_per_round: float
    padding_efficiency: float
    execution: str
    flops_per_step: float | None = None
    flops_per_forward: float | None = None
    remarks: tuple[str, ...] = ()
    stopped: str = ""
    rounds_asked: int | None = None
    setting_remarks: tuple[tuple[str, ...], ...] = ()
    measures: tuple[Measure, ...] = (ACCURACY,)
    client_names: tuple[str, ...] = ()
    upload_bytes: np.ndarray | None = None
    privacy: dict[str, Any] | None = None
    partition_hash: str = ""
    final: Any = field(default=None, repr=False, compare=False)

    @property
    def rounds(self) -> int:
        return self.copies_up.shape[2]

    @property
    def num_settings(self) -> int:
        return self.copies_up.shape[1]

    def checked_setting(self, setting: int) -> int:
        """Return the index of a setting.

        Raises:
          InputError: there is no such setting.
        """
        number = convert("setting", setting, int)
        inside = 0 <= number < self.num_settings
        require(inside, "setting", setting, f"in 0..{self.num_settings - 1}")
        return number
