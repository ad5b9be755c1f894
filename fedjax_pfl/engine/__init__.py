"""The engine: compiled rounds, callbacks, checkpoints, memory and devices."""

from fedjax_pfl.engine.callbacks import Callback, Progress
from fedjax_pfl.engine.checkpoints import Checkpoints
from fedjax_pfl.engine.memory import Memory
from fedjax_pfl.engine.new_clients import score_new_clients, split_new_clients
from fedjax_pfl.engine.program import Lowered
from fedjax_pfl.engine.progress import LiveCurves
from fedjax_pfl.engine.round_state import RoundState
from fedjax_pfl.engine.runs import MAX_RUNS, combinations, sweepable, swept_values
from fedjax_pfl.engine.simulation import Simulation
from fedjax_pfl.execution.lane_assignment import padding_efficiency
from fedjax_pfl.federation.data_sharding import distribute

__all__ = [
    "MAX_RUNS",
    "Callback",
    "Checkpoints",
    "LiveCurves",
    "Lowered",
    "Memory",
    "Progress",
    "RoundState",
    "Simulation",
    "combinations",
    "distribute",
    "padding_efficiency",
    "score_new_clients",
    "split_new_clients",
    "sweepable",
    "swept_values",
]
