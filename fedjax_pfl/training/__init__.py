"""Local training: optimizers, schedules, extra losses and loops over a client's samples."""

from fedjax_pfl.data.federated import Batch
from fedjax_pfl.federation.adaptation import Adaptation
from fedjax_pfl.federation.batching import COUNT_LIMIT, Schedule, batch_indices
from fedjax_pfl.federation.client import Client
from fedjax_pfl.federation.local_training import LocalTraining
from fedjax_pfl.federation.lr_schedules import LR_SCHEDULES, register_lr_schedule
from fedjax_pfl.federation.optimizers import OPTIMIZERS, SGD, register_optimizer
from fedjax_pfl.federation.regularizers import (
    ExtraLoss,
    WeightDistribution,
    classifier_kernel,
    estimated_class_shares,
    proximal,
    weight_decay,
)
from fedjax_pfl.models.task import Forward, ForwardedBatch
from fedjax_pfl.training.class_statistics import ClassSums
from fedjax_pfl.training.client_loop import ClientRuns, run_clients
from fedjax_pfl.training.local_sgd import Trained
from fedjax_pfl.training.local_step import LocalStep
from fedjax_pfl.training.sample_features import SampleFeatures

__all__ = [
    "COUNT_LIMIT",
    "LR_SCHEDULES",
    "OPTIMIZERS",
    "SGD",
    "Adaptation",
    "Batch",
    "ClassSums",
    "Client",
    "ClientRuns",
    "ExtraLoss",
    "Forward",
    "ForwardedBatch",
    "LocalStep",
    "LocalTraining",
    "SampleFeatures",
    "Schedule",
    "Trained",
    "WeightDistribution",
    "batch_indices",
    "classifier_kernel",
    "estimated_class_shares",
    "proximal",
    "register_lr_schedule",
    "register_optimizer",
    "run_clients",
    "weight_decay",
]
