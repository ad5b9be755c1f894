"""The algorithms, one file each; importing this package registers them all."""

from fedjax_pfl.algorithms.apfl import Apfl
from fedjax_pfl.algorithms.apple import Apple
from fedjax_pfl.algorithms.asynchronous import FedAsync, FedAvgAsync, FedAvgSync
from fedjax_pfl.algorithms.ccvr import CCVR
from fedjax_pfl.algorithms.cfl import Cfl
from fedjax_pfl.algorithms.cwfedavg import CwFedAvg
from fedjax_pfl.algorithms.ditto import Ditto
from fedjax_pfl.algorithms.fedala import FedALA
from fedjax_pfl.algorithms.fedamp import FedAMP, HeurFedAMP
from fedjax_pfl.algorithms.fedas import FedAS
from fedjax_pfl.algorithms.fedavg import FedAvg
from fedjax_pfl.algorithms.fedavg_ft import FedAvgFineTuned
from fedjax_pfl.algorithms.fedavgm import FedAvgM
from fedjax_pfl.algorithms.fedbabu import FedBabu
from fedjax_pfl.algorithms.fedbn import FedBN
from fedjax_pfl.algorithms.fedcac import FedCAC
from fedjax_pfl.algorithms.fedcp import FedCP
from fedjax_pfl.algorithms.fedcross import FedCross
from fedjax_pfl.algorithms.feddbe import FedDBE
from fedjax_pfl.algorithms.feddistill import FedDistill
from fedjax_pfl.algorithms.feddpa import FedDPA
from fedjax_pfl.algorithms.feddwa import FedDWA
from fedjax_pfl.algorithms.feddyn import FedDyn
from fedjax_pfl.algorithms.fedem import FedEM
from fedjax_pfl.algorithms.fedex_lora import FedExLoRA
from fedjax_pfl.algorithms.fedexp import FedExP
from fedjax_pfl.algorithms.fedfomo import FedFomo
from fedjax_pfl.algorithms.fedgc import FedGC
from fedjax_pfl.algorithms.fedgen import FedGen
from fedjax_pfl.algorithms.fedgh import FedGH
from fedjax_pfl.algorithms.fedkd import FedKD
from fedjax_pfl.algorithms.fedlc import FedLC
from fedjax_pfl.algorithms.fedmtl import FedMtl
from fedjax_pfl.algorithms.fednova import FedNova
from fedjax_pfl.algorithms.fedntd import FedNTD
from fedjax_pfl.algorithms.fedopt import FedAdagrad, FedAdam, FedYogi
from fedjax_pfl.algorithms.fedpac import FedPac
from fedjax_pfl.algorithms.fedper import FedPer
from fedjax_pfl.algorithms.fedphp import FedPHP
from fedjax_pfl.algorithms.fedproto import FedProto
from fedjax_pfl.algorithms.fedprox import FedProx
from fedjax_pfl.algorithms.fedprox_ft import FedProxFineTuned
from fedjax_pfl.algorithms.fedrep import FedRep
from fedjax_pfl.algorithms.fedrod import FedRod
from fedjax_pfl.algorithms.fedrs import FedRS
from fedjax_pfl.algorithms.fedsam import FedSAM
from fedjax_pfl.algorithms.fedupdate import FedUpdate
from fedjax_pfl.algorithms.floco import Floco
from fedjax_pfl.algorithms.flora import FLoRA
from fedjax_pfl.algorithms.fml import FML
from fedjax_pfl.algorithms.gpfl import GPFL
from fedjax_pfl.algorithms.hetlora import HetLoRA
from fedjax_pfl.algorithms.ifca import Ifca
from fedjax_pfl.algorithms.knnper import KnnPer
from fedjax_pfl.algorithms.l2c import L2C
from fedjax_pfl.algorithms.lg_fedavg import LgFedAvg
from fedjax_pfl.algorithms.lga import Lga, Plga
from fedjax_pfl.algorithms.local import Local
from fedjax_pfl.algorithms.moon import Moon
from fedjax_pfl.algorithms.mrmtl import MrMtl
from fedjax_pfl.algorithms.perfedavg import PerFedAvg
from fedjax_pfl.algorithms.perfedavg_async import PerFedAvgAsync
from fedjax_pfl.algorithms.perfedavg_spfl import PerFedAvgSpfl
from fedjax_pfl.algorithms.pfedfda import PFedFda
from fedjax_pfl.algorithms.pfedhn import PFedHN
from fedjax_pfl.algorithms.pfedla import HeurPFedLA, PFedLA
from fedjax_pfl.algorithms.pfedme import PFedMe
from fedjax_pfl.algorithms.pfedsim import PFedSim
from fedjax_pfl.algorithms.pfl_da import PflDa
from fedjax_pfl.algorithms.scaffold import Scaffold
from fedjax_pfl.algorithms.sfl import Sfl
from fedjax_pfl.algorithms.spfl import Spfl, SpflW
from fedjax_pfl.algorithms.waffle import Waffle
from fedjax_pfl.algorithms.weight_erosion import WeightErosion

__all__ = [
    "CCVR",
    "FML",
    "GPFL",
    "L2C",
    "Apfl",
    "Apple",
    "Cfl",
    "CwFedAvg",
    "Ditto",
    "FLoRA",
    "FedALA",
    "FedAMP",
    "FedAS",
    "FedAdagrad",
    "FedAdam",
    "FedAsync",
    "FedAvg",
    "FedAvgAsync",
    "FedAvgFineTuned",
    "FedAvgM",
    "FedAvgSync",
    "FedBN",
    "FedBabu",
    "FedCAC",
    "FedCP",
    "FedCross",
    "FedDBE",
    "FedDPA",
    "FedDWA",
    "FedDistill",
    "FedDyn",
    "FedEM",
    "FedExLoRA",
    "FedExP",
    "FedFomo",
    "FedGC",
    "FedGH",
    "FedGen",
    "FedKD",
    "FedLC",
    "FedMtl",
    "FedNTD",
    "FedNova",
    "FedPHP",
    "FedPac",
    "FedPer",
    "FedProto",
    "FedProx",
    "FedProxFineTuned",
    "FedRS",
    "FedRep",
    "FedRod",
    "FedSAM",
    "FedUpdate",
    "FedYogi",
    "Floco",
    "HetLoRA",
    "HeurFedAMP",
    "HeurPFedLA",
    "Ifca",
    "KnnPer",
    "LgFedAvg",
    "Lga",
    "Local",
    "Moon",
    "MrMtl",
    "PFedFda",
    "PFedHN",
    "PFedLA",
    "PFedMe",
    "PFedSim",
    "PerFedAvg",
    "PerFedAvgAsync",
    "PerFedAvgSpfl",
    "PflDa",
    "Plga",
    "Scaffold",
    "Sfl",
    "Spfl",
    "SpflW",
    "Waffle",
    "WeightErosion",
]
