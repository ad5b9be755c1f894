"""Every default of every algorithm beside the place that it was read from.

Pages and classes repeat each other; this table was made from papers and authors' code instead, so
that a slip in either is seen. A source is one of

  paper:  section, table or equation of the paper that the algorithm's file names
  code:   file and line of its authors' repository, at the commit in `REPOSITORIES`
  NAME:   another publication or library, where the authors leave the value open
  ours:   no published value, and why this one
"""

import re

import pytest

import fedjax_pfl as pfl

PLGA = "MondayCat/PLGA@6776107"
REPOSITORIES = {
    "apfl": "MLOPTPSU/FedTorch@ab8068d",
    "apple": "ljaiverson/pFL-APPLE@8078196",
    "cfl": "felisat/clustered-federated-learning@23a1c38",
    "cwfedavg": "regulationLee/cwFedAvg@59ed9c1",
    "ditto": "litian96/ditto@26d9b29",
    "fedala": "TsingZ0/FedALA@a7a9b21",
    "fedas": "xiyuanyang45/FedAS@1a4f5fd",
    "fedbabu": "jhoon-oh/FedBABU@e34c15b",
    "fedbn": "med-air/FedBN@2fa38ad",
    "fedcp": "TsingZ0/FedCP@7110e97",
    "feddbe": "TsingZ0/DBE@193f435",
    "feddwa": "Sherrylife/FedDWA@f2b4574",
    "feddyn": "alpemreacar/FedDyn@48a19fa",
    "fedem": "omarfoq/FedEM@996fadd",
    "fedexp": "Divyansh03/FedExP@34b05a2",
    "fedfomo": "NVlabs/FedFomo@fe04f66",
    "fedgen": "zhuangdizhu/FedGen@d767e34",
    "fedgh": "LipingYi/FedGH@2a6a29d",
    "fedkd": "wuch15/FedKD@9b9e63f",
    "fednova": "JYWa/FedNova@47b4e09",
    "fedntd": "Lee-Gihun/FedNTD@be00ee5",
    "fedpac": "JianXu95/FedPAC@5770f4f",
    "fedphp": "lxcnju/FedRepo@617ee01",
    "fedproto": "yuetan031/fedproto@97e42e2",
    "fedprox": "litian96/FedProx@d2a4501",
    "fedprox_ft": "litian96/FedProx@d2a4501",
    "fedrep": "lgcollins/FedRep@d82e629",
    "fedrs": "lxcnju/FedRepo@617ee01",
    "fedsam": "debcaldarola/fedsam@64bbf93",
    "gpfl": "TsingZ0/GPFL@ed7a7fe",
    "ifca": "jichan3751/ifca@61e44b8",
    "knnper": "omarfoq/knn-per@ee17520",
    "lg_fedavg": "pliang279/LG-FedAvg@7af0568",
    "moon": "QinbinLi/MOON@8fcba3c",
    "mrmtl": "kenziyuliu/private-cross-silo-fl@f16ff76",
    "pfedfda": "cj-mclaughlin/pFedFDA@73c7c40",
    "pfedhn": "AvivSham/pFedHN@1bc0549",
    "pfedme": "CharlieDinh/pFedMe@caf24b1",
    "sfl": "dawenzi098/SFL-Structural-Federated-Learning@0a699e4",
    **dict.fromkeys(("fedasync", "fedupdate", "lga", "perfedavg_async", "perfedavg_spfl"), PLGA),
    **dict.fromkeys(("plga", "spfl", "spfl_w"), PLGA),
}  # PFLlib is TsingZ0/PFLlib@d832e76 below, FL-bench KarhouTam/FL-bench@06e658b

OFF = "ours: an extra that is not in the paper is off"
EXTRA_SCORE = "ours: an extra score costs time, so it is off"
BY_SIZE = "ours: sample counts, as in FedAvg's paper; the authors leave the weights open"
FEDPROX = {
    "proximal_weight": (
        1.0,
        "code: README.md:133; FedDWA's paper, appendix B.3, finds 1 best; no code default",
    ),
    "slow_fraction": (0.0, "code: main.py:80, drop_percent"),
}
FINE_TUNING = {
    "fine_tune_epochs": (1, "ours: papers that fine-tune once do not say how long; one pass"),
    "final_only": (False, OFF),
    "fine_tune_proximal_weight": (
        0.0,
        "Ditto's code: lam is 0 unless a command sets it, main.py:144",
    ),
}
FEDOPT = {
    "tau": (1e-3, "paper: section 5; best were 1e-5 to 1e-1 where it is tuned"),
    "v0": (1.0, "paper: Algorithm 2 asks for v_-1 >= tau^2; in units of tau^2"),
    "weighting": ("size", BY_SIZE),
}
ADAM = FEDOPT | {
    "server_rate": (0.01, "ours: the paper tunes it on every task, 10^-2.5 to 10"),
    "b1": (0.9, "paper: section 5"),
    "b2": (0.99, "paper: section 5"),
    "bias_correction": (False, "paper: Algorithm 2 has none"),
}
LGA = {
    "stage": ("tensor", "code: Algorithms/users/userLGP_v1.py:147 of e1d6b52^"),
    "base": ("current", "paper: equation (11)"),
    "raw_cosine": (False, "paper: equation (11)"),
    "weighting": ("size", "ours: by samples as FedAvg, where Algorithm 2 has 1 / N'"),
}
PFEDLA = {
    "hypernetwork_rate": (1.0, "paper: equations (10) and (11), whose steps have no other rate"),
    "weighting": ("softmax", "ours: the paper wants weights that sum to 1 and names no function"),
    "grouping": ("blocks", "paper: section 3.2, a weight for each layer"),
    "initial": ("common", "ours: not stated; as FedAvg begins"),
    "embedding_size": (100, "ours: not stated; as in public implementations"),
    "hidden_size": (100, "ours: not stated; as in public implementations"),
}
SPFL = {
    "gamma": (10, "paper: section 4.1"),
    "local_updates": (2, "paper: section 4.1; code: SPFL/client/client.py:59-66"),
    "weighting": ("published", "code: SPFL/aggregation_utils/aggregation_v4_1.py"),
    "stage": ("stages", "paper: section 3.1, body and head"),
    "raw_cosines": (False, "paper: equation (5), a softmax"),
    "data_shares": (False, "code: SPFL/aggregation_utils/aggregation_v4_1.py"),
    "server_rate": (1.0, "code: SPFL/aggregation_utils/aggregation_v4_1.py"),
    "layer_weights": ("auto", "code: SPFL/aggregation_utils/aggregation_v4_1.py:108"),
}

# (default, source) of every hyperparameter.
TABLE: dict[str, dict[str, tuple[object, str]]] = {
    "apfl": {
        "alpha": (0.5, "code: fedtorch/parameters.py:68"),
        "adapt_alpha": ("first_step", "code: fedtorch/comms/trainings/federated/apfl.py:119"),
        "form": ("parameters", "paper: Algorithm 1"),
        "weighting": ("size", BY_SIZE),
    },
    "apple": {
        "relation_rate": (1e-3, "code: utils/utils.py:32"),
        "mu": (0.1, "code: utils/utils.py:35"),
        "penalty_share": (0.1, "code: utils/utils.py:36"),
        "penalty_schedule": ("exponential", "code: utils/utils.py:37"),
        "relation_momentum": (0.9, "code: train_APPLE.py:52"),
        "initial": ("common", "PFLlib: clientbase.py:19, one model for all; the authors draw N"),
    },
    "ccvr": {
        "per_class": (2000, "smduan/Fed-CCVR@19a6d65: conf.py, num_vr"),
        "epochs": (10, "smduan/Fed-CCVR@19a6d65: conf.py, epoch of retrain"),
        "every": (False, "paper: calibration after training"),
    },
    "cfl": {
        "mean_below": (0.4, "code: clustered_federated_learning.ipynb, EPS_1"),
        "largest_above": (1.6, "code: clustered_federated_learning.ipynb, EPS_2"),
        "first_split": (20, "code: clustered_federated_learning.ipynb, c_round > 20"),
        "max_clusters": (10, "ours: the paper has no bound; a stack of models needs one"),
        "linkage": ("complete", "code: fl_devices.py:133"),
        "gamma_max": (-1.0, "code: fl_devices.py:133 splits without the test of the paper"),
        "best_of_tree": (False, OFF),
    },
    "cwfedavg": {
        "wdr_weight": (10.0, "code: system/main.py:424, README.md:23"),
        "shares": ("norms", "paper: equation (9)"),
        "score_class_models": (False, EXTRA_SCORE),
    },
    "ditto": {
        "proximal_weight": (
            1.0,
            "code: run.sh:25, README.md:62; main.py:144 has 0, local training",
        ),
        "personal_epochs": (0, "code: flearn/trainers_MTL/ditto.py:88, as many steps as w"),
        "batches": ("own", "ours: Algorithm 1 leaves it open; the code takes those of w"),
        "weighting": ("size", BY_SIZE),
    },
    "fedadagrad": FEDOPT
    | {
        "server_rate": (0.1, "ours: the paper tunes it on every task, 0.03 to 10"),
        "b1": (0.0, "paper: section 5"),
    },
    "fedadam": ADAM,
    "fedala": {
        "weight_rate": (1.0, "code: system/main.py:97"),
        "layers": (1, "code: system/main.py:99, two tensors: one layer"),
        "percent": (80, "code: system/main.py:98"),
        "threshold": (0.1, "code: system/utils/ALA.py:20; README.md:103 says 0.01"),
        "max_passes": (30, "ours: the authors have no bound; losses settle after 11 at least"),
        "participants": ("all", "code: system/flcore/servers/serverala.py sends to all clients"),
    },
    "fedamp": {
        "sigma": (1.0, "FedDWA's paper: appendix B.3"),
        "alpha": (
            0.0,
            "ours: 0 stands for sigma / (N - 1), the most that keeps xi_ii from below 0",
        ),
        "proximal_weight": (0.1, "FedDWA's paper: appendix B.3, lambda / alpha = 0.1 / 1"),
        "start": ("own", "paper: Algorithm 1 goes on from w_i"),
    },
    "fedasync": {
        "mode": ("plga", "code: Algorithms/users/userFedAsync.py"),
        "alpha": (0.8, "code: Algorithms/users/userFedAsync.py:19"),
        "decay": ("poly", "code: Algorithms/users/userFedAsync.py:19"),
        "decay_rate": (0.5, "code: Algorithms/users/userFedAsync.py:19"),
        "decay_start": (4.0, "paper: b of its hinge function"),
        "proximal_weight": (0.0, "code: Algorithms/users/userFedAsync.py has no such term"),
    },
    "fedavg": {},
    "fedavg_async": {},
    "fedavg_ft": FINE_TUNING,
    "fedavg_sync": {},
    "fedcp": {"weight": (5.0, "code: system/run_me.sh")},
    "fedas": {
        "align_epochs": (1, "code: system/flcore/clients/clientas.py, set_parameters"),
        "align_rate": (0.01, "code: system/flcore/clients/clientas.py, set_parameters"),
        "align_batch": (16, "code: system/flcore/clients/clientas.py, set_parameters"),
    },
    "fedex_lora": {},
    "flora": {},
    "hetlora": {
        "gamma": (0.99, "paper: HetLoRA's decay factor"),
        "tail_weight": (0.01, "ours: a third party's configuration for GLUE"),
        "min_rank": (1, "ours: no smallest rank"),
        "weighting": ("norm", "HetLoRA: sparsity-weighted aggregation"),
    },
    "feddpa": {
        "local_weight": (0.5, "FedDPA's code: main.py"),
        "max_weight": (0.5, "FedDPA's code: README.md"),
        "prediction_weights": ("instance", "FedDPA: instance-wise weighting"),
        "instances": (5, "FedDPA's code: GlobalModel_generated.py"),
        "weighting": ("uniform", "FedDPA's code: model_aggregation.py"),
    },
    "fedavgm": {
        "server_momentum": (0.9, "Reddi et al. (2021): section 5; in Hsu et al.'s grid"),
        "nesterov": (True, "FedDWA's paper: appendix B.3"),
        "server_rate": (1.0, "paper: w <- w - v, without a rate"),
    },
    "fedbabu": {
        "weighting": ("uniform", "code: main_fed.py:103"),
        "fine_tune_epochs": (5, "code: utils/options.py:54"),
        "fine_tune_rate": (1e-3, "code: analysis.ipynb, its second cell"),
        "fine_tune_momentum": (0.9, "code: analysis.ipynb, its second cell"),
        "part": ("full", "code: analysis.ipynb, its second cell, body and head"),
    },
    "fedbn": {"weighting": ("uniform", "code: federated/fed_digits.py:247")},
    "fedcac": {
        "tau": (0.5, "Fling: flzoo, its configuration for CIFAR-10; 0.4 for CIFAR-100"),
        "beta": (100.0, "Fling: flzoo, its configuration for CIFAR-10; 170 for CIFAR-100"),
    },
    "fedcross": {
        "alpha": (0.99, "PFLlib: system/main.py:498"),
        "partner": ("lowest", "PFLlib: system/main.py:499"),
        "warmup_rounds": (0, "PFLlib: system/main.py:497"),
    },
    "feddbe": {
        "kappa": (50.0, "code: system/run_me.sh, -klw 50"),
        "mu": (1.0, "code: system/run_me.sh, -mo 1"),
    },
    "feddwa": {
        "top_k": (5, "code: main.py:59"),
        "weights": ("inverse", "paper: equation (15), Algorithm 1"),
        "guidance": ("epochs", "paper: Algorithm 1"),
        "guidance_epochs": (None, "code: clients/clientFedDWA.py:30, the local epochs"),
        "score_guidance": (False, EXTRA_SCORE),
    },
    "feddyn": {
        "alpha": (0.01, "code: example_cifar_10.py:65"),
        "scaling": ("equal", "paper: Algorithm 1, one alpha for all"),
        "score_last": (False, EXTRA_SCORE),
    },
    "fedem": {
        "learners": (3, "code: utils/args.py:71; all of its scripts"),
        "new_client_passes": (1, "code: aggregator.py, update_test_clients"),
    },
    "fedexp": {
        "epsilon": (1e-3, "code: main.py:121, CIFAR-10; 0.1 on synthetic data"),
        "average_last": (True, "code: main.py:431"),
        "weighting": ("size", "code: main.py:347-362"),
    },
    "fedfomo": {
        "downloads": (4, "code: README.md:47, num_update_clients"),
        "exploration": (0.3, "code: README.md:47, client_weight_epsilon"),
        "exploration_decay": (0.05, "code: README.md:47, client_weight_epsilon_decay"),
        "norm": ("l2", "paper: the distance in its weights; federated/args.py:180 has l1"),
        "affinity": ("normalized", "code: federation.py:387"),
        "fallback": ("trained", "ours: the code goes back to s_i, which loses local training"),
    },
    "fedgh": {
        "server_rate": (0.01, "HtFLlib: system/main.py:401"),
        "server_epochs": (1, "code: FedGH_Codes/experiments/FLHetero/FedGH.py, one pass"),
        "server_batch": (1, "code: FedGH_Codes/experiments/FLHetero/FedGH.py, one pair in a step"),
    },
    "fedgc": {"weight": (1.0, "PFLlib: system/main.py:447")},
    "fedgen": {
        "weight": (1.0, "PFLlib: system/flcore/clients/clientgen.py, train"),
        "generator_rate": (3e-4, "code: utils/model_config.py, ensemble_lr of MNIST"),
        "generator_steps": (50, "code: utils/model_config.py, ensemble_epochs"),
        "generator_batch": (32, "code: main.py, the batch size"),
        "noise_width": (32, "code: utils/model_config.py, MNIST"),
        "hidden_width": (256, "code: utils/model_config.py, MNIST"),
    },
    "fedlc": {
        "tau": (1.0, "FL-bench: src/server/fedlc.py:25; the authors tune it"),
        "denominator": ("all", "FL-bench: src/client/fedlc.py:33; the paper's loss has no minimum"),
    },
    "fedmtl": {
        "coupling": (-1.0, "LG-FedAvg@7af0568: models/Update.py:102, by the model's size"),
        "ridge": (-1.0, "LG-FedAvg@7af0568: models/Update.py:102, by the model's size"),
    },
    "fednova": {
        "proximal_weight": (0.0, "code: train_LocalSGD.py:105"),
        "slow_fraction": (0.0, "ours: steps differ already where clients have other sizes"),
    },
    "fedntd": {
        "beta": (1.0, "code: config/fedntd.json"),
        "tau": (1.0, "code: config/fedntd.json; algorithms/fedntd/criterion.py:13 has 3"),
        "weighting": ("size", "code: algorithms/BaseServer.py, _aggregation"),
    },
    "fedpac": {
        "weight": (1.0, "code: options.py:29"),
        "head_epochs": (1, "code: methods/fedpac.py:141"),
        "head_rate": (0.1, "code: methods/fedpac.py:153"),
        "cutoff": (1e-3, "code: tools.py:120"),
    },
    "fedper": {
        "personal_layers": (1, "paper: the head; K_P is 1 to 4 in its experiments"),
        "weighting": ("size", "paper: Algorithm 1"),
    },
    "fedphp": {
        "weight": (0.1, "code: train_lab.py:172"),
        "regularizer": ("mmd", "code: train_lab.py:171"),
        "inheritance": (0.9, "code: algorithms/fedphp.py:258"),
    },
    "fedproto": {
        "weight": (1.0, "code: lib/options.py:69, README.md:24; README.md:32 has 0.1 on CIFAR-10"),
        "distance": ("matched", "ours: near lib/update.py:171, without samples that have no class"),
        "feature_means": ("after", "paper: Algorithm 1"),
        "weighting": ("size", "paper: the mean of prototypes by sample counts"),
        "drop_missing": (False, "paper: Algorithm 1"),
        "eligible": ("all", "paper: the nearest of all global prototypes"),
    },
    "fedprox": FEDPROX,
    "fedprox_ft": FEDPROX | FINE_TUNING,
    "fedrep": {
        "head_epochs": (10, "code: scripts/FedRep_cifar10_2shards.sh:5, 11 epochs less 1"),
        "weighting": ("uniform", "code: main_fedrep.py:30, sizes of 1 on CIFAR and MNIST"),
        "final_head_epochs": (0, OFF),
    },
    "fedrod": {
        "personal_weight": (1.0, "paper: Algorithm 1, one rate for both heads"),
        "score_trained": (False, EXTRA_SCORE),
    },
    "fedrs": {
        "alpha": (0.5, "code: train_lab.py:166, of 0.9, 0.5 and 0.1"),
        "factors": ("shares", "code: algorithms/fedrs.py:185"),
    },
    "fedsam": {
        "rho": (0.1, "code: paper_experiments/cifar10.sh:22"),
        "adaptive": (False, "paper: FedSAM; True is its FedASAM"),
        "eta": (0.2, "code: paper_experiments/cifar10.sh:34, of FedASAM"),
        "global_momentum": (False, "paper: FedSAM; True is Qu et al.'s MoFedSAM"),
        "beta": (0.1, "Qu et al.: section 5, of MoFedSAM"),
    },
    "fedupdate": {
        "fine_tune_steps": (1, "code: SPFL/experiment_fedavg_update_v1.py:155"),
        "discard_fine_tuned": (False, "code: SPFL/experiment_fedavg_update_v1.py:257"),
    },
    "fedyogi": ADAM,
    "gpfl": {
        "weight": (0.01, "code: system/run_me.sh, CNN and MLP"),
        "module_decay": (0.1, "code: system/run_me.sh, CNN and MLP"),
    },
    "heurfedamp": {
        "sigma": (1.0, "FedDWA's paper: appendix B.3"),
        "proximal_weight": (0.1, "FedDWA's paper: appendix B.3, lambda / alpha = 0.1 / 1"),
        "start": ("cloud", "ours: as the paper's lambda / alpha is too small to pull"),
        "self_weight": (-1.0, "ours: not stated; -1 stands for 1 / N"),
    },
    "heurpfedla": PFEDLA
    | {
        "retained": (1, "paper: Tables 1 and 2"),
        "updates": ("mixed", "ours: weights that are not applied have no effect"),
    },
    "floco": {
        "corners": (10, "adap/flower@08266e0: baselines/floco/README.md, by the authors"),
        "warmup_fraction": (
            0.5,
            "adap/flower@08266e0: baselines/floco/README.md, 250 of 500 rounds",
        ),
        "rho": (0.1, "adap/flower@08266e0: baselines/floco/README.md, for five folds"),
    },
    "ifca": {
        "clusters": (2, "paper: section 6, CIFAR-10"),
        "averaging": ("models", "code: cifar/train_cluster_cifar_tf.py"),
        "weighting": ("size", "ours: as FedAvg, which is IFCA of one cluster then"),
        "initial": ("seeds", "paper: Algorithm 1"),
        "warmup_rounds": (20, "code: femnist/ifca/models/main.py:115"),
        "scored_by": ("train", "paper: Algorithm 1"),
    },
    "knnper": {
        "neighbours": (7, "code: examples/cifar-10.md:50"),
        "weight": (0.5, "ours: votes and model alike; the authors report the best of a grid"),
        "tuned": (False, "ours: it needs validation samples"),
        "scale": (1.0, "code: utils/args.py:230"),
    },
    "l2c": {
        "logit_rate": (0.01, "ours: no code of the authors holds one; as in re-implementations"),
        "prune_after": (10, "SCooL: its code, by the same authors"),
        "neighbours": (0, "SCooL: its code; 0 stands for a tenth of the clients"),
        "whole_pass": (False, "SCooL: its code"),
        "weights": ("learned", "FedDWA's paper: the method of its tables"),
    },
    "feddistill": {"weight": (1.0, "HtFLlib: system/total.sh:4; PFLlib: system/main.py:447")},
    "fedkd": {
        "first_energy": (0.95, "code: parameters.py:46"),
        "last_energy": (0.98, "code: parameters.py:47"),
        "weighting": ("uniform", "code: run.py, the mean of the changes"),
    },
    "fml": {
        "alpha": (0.5, "HtFLlib: system/total.sh:5"),
        "beta": (0.5, "HtFLlib: system/total.sh:5"),
        "weighting": ("size", "paper: FedAvg's mean; PFLlib: serverfml.py, aggregate_parameters"),
    },
    "lg_fedavg": {
        "global_layers": (1, "PFLlib: serverlg.py:13; the authors' README.md:60 has 3 and 2"),
        "global_end": ("last", "code: main_lg.py:46"),
        "weighting": ("uniform", "code: main_lg.py:109"),
        "warmup_rounds": (0, "ours: all algorithms begin alike; main_lg.py:42 loads FedAvg's"),
    },
    "lga": LGA,
    "local": {"participants": ("all", "ours: training alone needs no cohort")},
    "moon": {
        "mu": (1.0, "code: main.py:42; paper: section 4.1, 5 on CIFAR-10 and 1 elsewhere"),
        "tau": (0.5, "code: main.py:44; paper: section 4.1"),
        "weighting": ("size", "code: main.py:503"),
    },
    "mrmtl": {
        "proximal_weight": (
            1.0,
            "code: README.md:43, for School; main.py:70 has 0, local training",
        ),
        "weighting": ("size", "code: trainers/base.py:47"),
    },
    "perfedavg": {
        "variant": ("first_order", "PFLlib: clientperavg.py:72"),
        "product": ("exact", "ours: exact products cost as much as differences of gradients"),
        "delta": (1e-3, "FL-bench: src/server/perfedavg.py:20"),
        "inner_factor": (1.0, "PFLlib: clientperavg.py:14"),
        "passes": (2, "PFLlib: clientperavg.py trains twice"),
        "weighting": ("size", "PFLlib: serverbase.py"),
    },
    "perfedavg_async": {"local_updates": (2, "code: Algorithms/users/userPerFed.py:37-44")},
    "perfedavg_spfl": {"local_updates": (2, "code: SPFL/client/client.py:95-101")},
    "pfedfda": {
        "single": (False, "code: main.py:40"),
        "min_samples": (3, "code: clients/client_fedfda.py:34, 187, as it means"),
        "epsilon": (1e-4, "code: clients/client_fedfda.py:13"),
    },
    "pfedhn": {
        "server_rate": (0.01, "code: experiments/pfedhn/trainer.py:273"),
        "embedding_rate": (1.0, "code: experiments/pfedhn/trainer.py:95, the server's own"),
        "server_momentum": (0.9, "code: experiments/pfedhn/trainer.py:101"),
        "server_decay": (1e-3, "code: experiments/pfedhn/trainer.py:274"),
        "server_clip": (50.0, "code: experiments/pfedhn/trainer.py:180"),
        "clip": (50.0, "code: experiments/pfedhn/trainer.py:160"),
        "embedding_size": (0, "code: experiments/pfedhn/trainer.py:77; 0 stands for 1 + N / 4"),
        "hidden_size": (100, "code: experiments/pfedhn/trainer.py:278"),
        "depth": (3, "code: experiments/pfedhn/trainer.py:271"),
        "form": ("sequential", "paper: Algorithm 1, one client a step"),
        "local_head": (False, "paper: section 3, pFedHN; True is its pFedHN-PC"),
    },
    "pfedla": PFEDLA,
    "pfedme": {
        "proximal_weight": (15.0, "code: main.py:71"),
        "inner_steps": (5, "code: main.py:77"),
        "personal_rate": (0.05, "code: README.md:111; main.py:78 has 0.09, others 0.01 and 0.1"),
        "server_rate": (1.0, "code: main.py:70"),
        "decay": (1e-3, "code: FLAlgorithms/optimizers/fedoptimizer.py:50"),
        "weighting": ("size", "code: FLAlgorithms/servers/serverbase.py:66"),
        "participants": (
            "all",
            "code: FLAlgorithms/servers/serverpFedMe.py:55; paper: Algorithm 1",
        ),
    },
    "pfedsim": {
        "warmup_fraction": (0.5, "FL-bench: src/server/pfedsim.py:17, by the paper's first author")
    },
    "pfl_da": {
        "generic_weight": (0.9, "authors' sine study: beta of train()"),
        "mixed": ("first_step", "authors' sine study: train(), if j == 0"),
        "weighting": ("uniform", "authors' image study: coefs of class PFLDA"),
    },
    "plga": LGA | {"flush": (True, "code: Algorithms/users/userLGP_v1.py:162 of e1d6b52^")},
    "scaffold": {"server_rate": (1.0, "paper: section 7, eta_g of all its experiments")},
    "sfl": {
        "graph": ("labels", "code: its data split joins clients that share a label"),
        "relation": (None, "ours: a graph that the user gives"),
        "neighbours": (5, "ours: without labels a graph needs a number; the paper gives the graph"),
        "layers": (3, "code: options.py:35"),
        "server_alpha": (1.0, "code: options.py:27"),
        "graph_weight": (0.3, "code: federated.py:126"),
        "global_weight": (0.3, "code: federated.py:126"),
        "detached": (False, "paper: its objective has the norms; the code detaches them"),
        "learned_share": (0.05, "code: options.py:42, adjbeta"),
    },
    "spfl": SPFL,
    "spfl_w": SPFL | {"memory": (0.0, "code: the cleaned file; aggregation_v4_1_1.py:236 has 0.6")},
    "waffle": {
        "server_rate": (1.0, "ours: not stated; SCAFFOLD's, which it extends"),
        "alice": (0, "paper: section 3, agent 0"),
        "everyone": (False, "paper: section 2, one agent is served"),
        "delta_omega": (3.2, "paper: section 2.2, Table 3"),
        "shift": (0.0, "paper: equation (4)"),
        "omega": (None, "paper: equation (4)"),
        "psi": (None, "paper: equation (4)"),
        "initial_history": ("uniform", "ours: not stated; begins as an even average"),
        "control_update": ("rebased", "ours: the letter of (1) does not end in local training"),
        "distance": ("update", "paper: Algorithm 1"),
    },
    "weight_erosion": {
        "alice": (0, "WAFFLE's paper: section 3, agent 0"),
        "distance_penalty": (0.006, "WAFFLE's paper: Table 3, MNIST A"),
        "size_penalty": (0.0, "ours: not stated by either paper"),
    },
}


@pytest.mark.parametrize("name", sorted(pfl.core.ALGORITHMS))
def test_defaults_are_the_published_ones(name):
    """A new hyperparameter needs a line above, and so does a new algorithm."""
    wanted = {key: value for key, (value, _) in TABLE.get(name, {}).items()}
    assert name in TABLE
    assert pfl.make_algorithm(name).hyperparameters() == wanted


def test_every_line_has_a_source():
    assert set(TABLE) <= set(pfl.core.ALGORITHMS)
    for name, rows in TABLE.items():
        for key, (_, source) in rows.items():
            kind, _, place = source.partition(": ")
            assert len(place) > 5, (name, key)
            assert kind != "code" or name in REPOSITORIES, (name, key)
    assert all(re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{7}", one) for one in REPOSITORIES.values())
