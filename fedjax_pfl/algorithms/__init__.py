"""The methods, one file each; importing this package registers them all."""

from fedjax_pfl.algorithms.cwfedavg import CwFedAvg
from fedjax_pfl.algorithms.fedavg import FedAvg, FedAvgFineTuned
from fedjax_pfl.algorithms.feddwa import FedDWA
from fedjax_pfl.algorithms.local import Local
from fedjax_pfl.algorithms.scaffold import Scaffold
from fedjax_pfl.algorithms.waffle import Waffle
from fedjax_pfl.algorithms.weight_erosion import WeightErosion

__all__ = [
    "CwFedAvg",
    "FedAvg",
    "FedAvgFineTuned",
    "FedDWA",
    "Local",
    "Scaffold",
    "Waffle",
    "WeightErosion",
]
