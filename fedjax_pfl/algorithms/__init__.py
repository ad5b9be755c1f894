"""The algorithms, one file each; importing this package registers them all."""

from fedjax_pfl.algorithms.asynchronous import FedAsync, FedAvgAsync, FedAvgSync
from fedjax_pfl.algorithms.cfl import Cfl
from fedjax_pfl.algorithms.cwfedavg import CwFedAvg
from fedjax_pfl.algorithms.fedavg import FedAvg
from fedjax_pfl.algorithms.fedavg_ft import FedAvgFineTuned
from fedjax_pfl.algorithms.fedavgm import FedAvgM
from fedjax_pfl.algorithms.fedbn import FedBN
from fedjax_pfl.algorithms.feddwa import FedDWA
from fedjax_pfl.algorithms.fedper import FedPer
from fedjax_pfl.algorithms.fedprox import FedProx
from fedjax_pfl.algorithms.fedupdate import FedUpdate
from fedjax_pfl.algorithms.ifca import Ifca
from fedjax_pfl.algorithms.lg_fedavg import LgFedAvg
from fedjax_pfl.algorithms.lga import Lga, Plga
from fedjax_pfl.algorithms.local import Local
from fedjax_pfl.algorithms.perfedavg_async import PerFedAvgAsync
from fedjax_pfl.algorithms.perfedavg_spfl import PerFedAvgSpfl
from fedjax_pfl.algorithms.pfedla import HeurPFedLA, PFedLA
from fedjax_pfl.algorithms.scaffold import Scaffold
from fedjax_pfl.algorithms.sfl import Sfl
from fedjax_pfl.algorithms.spfl import Spfl, SpflW
from fedjax_pfl.algorithms.waffle import Waffle
from fedjax_pfl.algorithms.weight_erosion import WeightErosion

__all__ = [
    "Cfl",
    "CwFedAvg",
    "FedAsync",
    "FedAvg",
    "FedAvgAsync",
    "FedAvgFineTuned",
    "FedAvgM",
    "FedAvgSync",
    "FedBN",
    "FedDWA",
    "FedPer",
    "FedProx",
    "FedUpdate",
    "HeurPFedLA",
    "Ifca",
    "LgFedAvg",
    "Lga",
    "Local",
    "PFedLA",
    "PerFedAvgAsync",
    "PerFedAvgSpfl",
    "Plga",
    "Scaffold",
    "Sfl",
    "Spfl",
    "SpflW",
    "Waffle",
    "WeightErosion",
]
