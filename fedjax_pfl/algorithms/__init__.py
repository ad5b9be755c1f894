"""The methods, one file each; importing this package registers them all."""

from fedjax_pfl.algorithms.fedavg import FedAvg, FedAvgFineTuned
from fedjax_pfl.algorithms.feddwa import FedDWA
from fedjax_pfl.algorithms.local import Local

__all__ = ["FedAvg", "FedAvgFineTuned", "FedDWA", "Local"]
