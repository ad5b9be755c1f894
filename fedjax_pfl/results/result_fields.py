"""The fields of `Result`, and what follows from them: divergence, traffic and computation."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedjax_pfl.utils.conversions import convert
from fedjax_pfl.utils.errors import require
from fedjax_pfl.utils.metric_names import ACCURACY, Measure


@dataclass(frozen=True)
class ResultFields:
    """The fields of `Result`, which describes them, with divergence, traffic and computation."""

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
    upload_bits: int | None = None
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

    def diverged(self) -> list[tuple[int, int, int, int]]:
        """Return (seed, setting, round, permanent client id) of each diverged training."""
        return self._where("diverged")

    def nonfinite(self) -> list[tuple[int, int, int, int]]:
        """Return (seed, setting, round, client id) of each non-finite aggregation."""
        return self._where("nonfinite")

    def _where(self, flag: str) -> list[tuple[int, int, int, int]]:
        """Return (seed, setting, round, client id) where a record of clients is true."""
        found = np.argwhere(self.clients.get(flag, np.zeros((0, 0, 0, 0), bool)))
        ids = self.client_ids
        return [(self.seeds[s], int(h), int(t) + 1, int(ids[n])) for s, h, t, n in found]

    def server_nonfinite(self) -> list[tuple[int, int, int]]:
        """Return (seed, setting, round) of each non-finite server state."""
        found = np.argwhere(self.scalars.get("server_nonfinite", np.zeros((0, 0, 0))) > 0)
        return [(self.seeds[s], int(h), int(t) + 1) for s, h, t in found]

    def traffic(self) -> dict[str, np.ndarray]:
        """Return the bytes sent ("up") and received ("down") by each client, int64 [S, H, T, N]."""
        size = self.block_sizes.astype(np.int64) * self.item_bytes
        sent = {
            "up": self.copies_up.astype(np.int64)
            @ (size if self.upload_bytes is None else self.upload_bytes),
            "down": self.copies_down.astype(np.int64) @ size,
        }
        bits = {"up": self.upload_bits or 8 * self.item_bytes, "down": 8 * self.item_bytes}
        for way in sent:
            if (numbers := self.clients.get(f"numbers_{way}")) is not None:
                sent[way] += -(-numbers.astype(np.int64) * bits[way] // 8)
        return sent

    def traffic_mb_per_client_round(self, setting: int = 0) -> dict[str, float]:
        """Return megabytes (1e6 bytes) per participating client and round.

        Raises:
          InputError: no such setting.
        """
        setting = self.checked_setting(setting)
        present = max(int(self.clients["participated"][:, setting].sum()), 1)
        sent = {way: float(bytes_[:, setting].sum()) for way, bytes_ in self.traffic().items()}
        return {way: total / present / 1e6 for way, total in sent.items()}

    def flops(self) -> np.ndarray | None:
        """Return FLOPs of each client's local training, float64 [S, H, T, N]; None if unknown.

        Clients that diverge count too. A last minibatch that is not full costs as much as a full
        one. Forward passes outside of local steps are included.
        """
        if self.flops_per_step is None or "local_steps" not in self.clients:
            return None
        steps = self.clients["local_steps"] * float(self.flops_per_step)
        passes = self.clients.get("forward_samples")
        if passes is None:
            return steps
        return None if self.flops_per_forward is None else steps + passes * self.flops_per_forward

    def computation(self, setting: int = 0) -> dict[str, float | None]:
        """Return totals of local training; a GFLOP is 1e9 floating-point operations.

        "flops_per_step"; "local_steps_per_client_round" and "gflop_per_client_round", of a client
        that takes part; "gflop_per_client", in all rounds, mean over all clients and seeds. Where
        forward passes were counted, "flops_per_forward" and "forward_samples_per_client_round" too.

        Raises:
          InputError: no such setting.
        """
        setting = self.checked_setting(setting)
        present, done = max(int(self.clients["participated"][:, setting].sum()), 1), self.flops()
        total = None if done is None else float(done[:, setting].sum()) / 1e9
        runs = len(self.seeds) * self.num_clients

        def counted(name: str) -> float | None:
            counts = self.clients.get(name)
            return None if counts is None else int(counts[:, setting].sum(dtype=np.int64)) / present

        numbers = {
            "flops_per_step": self.flops_per_step,
            "local_steps_per_client_round": counted("local_steps"),
            "gflop_per_client_round": None if total is None else total / present,
            "gflop_per_client": None if total is None else total / runs,
        }
        if "forward_samples" in self.clients:
            numbers["flops_per_forward"] = self.flops_per_forward
            numbers["forward_samples_per_client_round"] = counted("forward_samples")
        return numbers
