"""Aliases: names of other libraries and papers for algorithms, options and data sets.

All aliases are normalized by `name_matching.normalized`. Names that are not registered are ignored.
"""


def _inverted(table: dict[str, str]) -> dict[str, tuple[str, ...]]:
    """Return names by alias, given aliases by name."""
    ours: dict[str, tuple[str, ...]] = {}
    for name, others in table.items():
        for other in others.split():
            ours[other] = (*ours.get(other, ()), name)
    return ours


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Algorithms. An alias of several algorithms is a family of algorithms.
ALGORITHMS = _inverted(
    {
        "cfl": "clusterfl clusteredfl clusteredfederatedlearning sattler",
        "fedadagrad": "fedopt adaptivefedopt",
        "fedadam": "fedopt adaptivefedopt",
        "fedavg_ft": "fedft fedavg+ft fedavgfinetune fedavgfinetuned fedavgfinetuning",
        "fedavgm": "fedavgmomentum fedmom fedavg+momentum servermomentum",
        "feddbe": "dbe fedavgdbe fedavg+dbe",
        "feddistill": "fd federateddistillation",
        "fedper": "fedpersonalization",
        "fedprox_ft": "fedprox+ft fedproxfinetune fedproxfinetuned fedproxfinetuning",
        "fedyogi": "fedopt adaptivefedopt",
        "heurfedamp": "fedampheur heuristicfedamp",
        "lg_fedavg": "lgfed lg",
        "local": "localonly localtraining onlylocal standalone separate individual",
        "perfedavg": "peravg permfedavg",
        "weight_erosion": "erosion",
    }
)

# Aliases of a setting of an algorithm: (algorithm, hyperparameter, value).
VARIANTS = {
    "metal2c": ("l2c", "weights", "attention"),
    "pfedhnpc": ("pfedhn", "local_head", "true"),
    "perfedavgfo": ("perfedavg", "variant", "first_order"),
    "perfedavghf": ("perfedavg", "variant", "hessian_free"),
    "peravgfo": ("perfedavg", "variant", "first_order"),
    "peravghf": ("perfedavg", "variant", "hessian_free"),
}

# Algorithms of other libraries that are not implemented.
ABSENT = _words("""
    adcol afl bulyan cfloc dasha depthfl dfl dispfl dpfedavg elastic fedah fedap fedbe
    fedcd fedce fedcm fedcurv feddc feddf feddisco fedetf
    fedfa fedfed fedgkt fedgroup fedhkd fediir fedlaw fedlin fedma fedmask fedmd
    fedmedian fedmix fedmlb fednh fedpara fedpcl fedpd fedperfix fedpop fedproc fedrap
    fedselect fedsgd fedsim fedsoft fedsplit fedsr fedstar fedtgp fedtp fedtrimmedavg feduv flanders
    flute heterofl hypcluster krum ktpfl lcfedavg mapper metafed mime mocha
    multikrum partialfed pfedbayes pfedgate pfedgp pfedgraph pfedkd powd qfedavg qffl
    subfedavg tamuna term
""")

# Why some of them are not, in place of "It is not in this version."
REASONS = {
    "fedpcl": "It is not here: its clients train on joined features of several pretrained "
    "networks, and a federation has one network; 'fedproto' exchanges class means as well.",
    "dpfedavg": "It is an option of many algorithms here: dp='client', or --dp=client.",
}
RULES = {
    "bulyan": "bulyan",
    "fedmedian": "median",
    "fedtrimmedavg": "trimmed_mean",
    "krum": "krum",
    "multikrum": "multi_krum",
}
for _name, _rule in RULES.items():
    REASONS[_name] = (
        f"It is an option of many algorithms here: aggregator={_rule!r}, or --aggregator={_rule}."
    )

# Options and flags of PFLlib, FL-bench, Flower, FedML, LEAF and the repositories of the papers.
OPTIONS = _inverted(
    {
        "adapt_epochs": "finetuneepoch finetuneepochs finetuningepochs fte fe",
        "algorithms": "algorithm algo alg method methods strategy fedname federatedoptimizer",
        "alpha": "a dirichletalpha diralpha partitionalpha",
        "augment": "augmentation dataaugmentation",
        "batch_norm": "buffers",
        "batch_size": "bs lbs localbs localbatchsize clientbatchsize trainbatchsize",
        "classes_per_client": "c classes classperclient classesperuser labelsperclient",
        "clip_norm": "clip clipgrad gradclip gradientclip gradientclipval gradientclipping "
        "maxgradnorm maxnorm",
        "clusters": "clusternum nclusters numclusters",
        "column": "clientcolumn idcolumn partitionby",
        "data_dir": "datapath dataroot datasetdir datasetpath",
        "dataset": "d data datasetname",
        "compress": "compression compressor",
        "dp_noise": "noisemultiplier",
        "eval_every": "eg ti evalgap evalinterval evalfrequency frequencyofthetest testgap "
        "testinterval tg",
        "freeze": "freezebackbone freezelayers frozenlayers",
        "head_epochs": "plocalepochs pls",
        "init_from": "externalmodelparamsfile initmodel initweights loadmodel modelpath pretrained "
        "pretrainedmodel pretrainedpath weights",
        "inner_steps": "k",
        "input_scaling": "normalize scale standardize",
        "learning_rate": "lr locallr locallearningrate clientlr clientlearningrate",
        "learning_rate_decay": "lrdecay ld ldg learningratedecaygamma lrdecayperround",
        "local_epochs": "ls le localepoch localep epochs numepochs clientepochs numlocalepochs",
        "local_steps": "localiterations localiters localupdates numlocalsteps",
        "lora_alpha": "peftloraalpha",
        "lora_layers": "loratargetmodules targetmodules",
        "lora_rank": "lora lorar peftlorar",
        "lr_schedule": "lrscheduler lrschedulertype lrpolicy scheduler",
        "min_size": "leastsamples minpartitionsize minsamplesperclient ms",
        "model": "arch backbone m modelname net network",
        "momentum": "mo mom clientmomentum",
        "new_client_steps": "finetuningepochnew ften",
        "new_clients": "nnc numnewclients",
        "num_clients": "nc cn clientnum clientnumintotal nclients nparties numparties "
        "numpartitions numsupernodes numusers totalclients",
        "num_seeds": "seeds t times numruns numtrials repeats trials",
        "optimizer": "clientoptimizer localoptimizer opt optim",
        "output_dir": "goal go logdir outdir savedir savefoldername sfn",
        "participation": "jr joinratio frac fraction fractionfit fractiontrain clientfraction "
        "samplefraction participationratio participationrate proportion clientsperround "
        "clientnumperround numclientsperround",
        "partition": "niid noniid partitioner partitionmethod partitiontype splitmethod",
        "patience": "ab autobreak earlystop earlystopping earlystoppingrounds",
        "percent": "s randpercent",
        "personal_epochs": "plocalepochs pls",
        "personal_rate": "lrp plearningrate personallearningrate",
        "proximal_weight": "lam lambda lamda",
        "relation_rate": "dlr drlearningrate",
        "rounds": "gr ge commround commrounds communicationrounds globalepoch globalepochs "
        "globalrounds nrounds numglobaliters numrounds numserverrounds serverrounds",
        "save_models": "savemodel",
        "seed": "manualseed randomseed rngseed",
        "server_rate": "slr serverlr serverlearningrate",
        "shards_per_client": "s shards shardperuser shardsperuser",
        "test_fraction": "tr testratio testsetratio",
        "tensorboard": "tb usetensorboard visible",
        "validation_fraction": "vr valfraction valratio valsetratio",
        "weight": "lam lambda lamda",
        "weight_rate": "et eta",
        "weight_decay": "wd l2",
    }
)

# Aliases of hyperparameters that hold for one algorithm only.
HYPERPARAMETERS = {
    "apfl": {"al": "alpha"},
    "apple": {"l": "penalty_share"},
    "ditto": {"mu": "proximal_weight"},
    "fedadam": {"beta1": "b1", "beta2": "b2"},
    "fedala": {"layeridx": "layers", "p": "layers"},
    "fedamp": {"alk": "alpha", "alphak": "alpha", "sg": "sigma"},
    "fedavgm": {"beta": "server_momentum"},
    "fedbabu": {"finetuningepochs": "fine_tune_epochs", "fte": "fine_tune_epochs"},
    "feddyn": {"al": "alpha"},
    "fedfomo": {"m": "downloads"},  # M: see `CAPITALS`
    "fednova": {"mu": "proximal_weight"},
    "fedprox": {"mu": "proximal_weight"},
    "fedprox_ft": {"mu": "proximal_weight"},
    "fedyogi": {"beta1": "b1", "beta2": "b2"},
    "pfedme": {"beta": "server_rate", "bt": "server_rate"},
}

# Case-sensitive flags of one letter.
CAPITALS = {"M": "fedfomo.downloads"}

# Flags of other libraries without a counterpart, with the alternative.
_DEVICE = (
    "JAX chooses the device; CUDA_VISIBLE_DEVICES=0 or JAX_PLATFORMS=cpu before the command does"
)
_LATE = "--stragglers names late clients, --participation draws clients at random"
_TOGETHER = "all clients train inside one program, and --client_execution selects how"
_ALL = "all clients with test samples are scored, and every round has as many clients"
_WRITTEN = "metrics, the table and pictures are always written"
_ON = "the same command continues a run that was stopped"


WITHOUT = {
    other: why
    for others, why in {
        "clientresources cuda dev device deviceid did gpu gpuid gpus nocuda usecuda": _DEVICE,
        "clientdroprate cdr droppercent sendslowrate ssr stragglerfraction stragglerratio "
        "trainslowrate tsr": _LATE,
        "fractionevaluate minavailableclients minavailablenodes minevaluateclients "
        "minevaluatenodes minfitclients mintrainnodes": _ALL,
        "criterion loss lossfunction": "the task of the data set has its loss",
        "mode numworkers": _TOGETHER,
        "nb ncl numclasses": "the data set has its number of classes",
        "continue loadcheckpoint prev pv resume": _ON,
        "resetoptimizeronglobalepoch": "optimizers are reset in every round, and "
        "--keep_optimizer_state keeps its state",
        "warmup warmupsteps warmuprounds": "--lr_schedule=warmup_cosine begins with a warm-up",
        "savefig savelog savemetrics": _WRITTEN,
        "selfbalancing": "--partition=dirichlet caps the sizes, dirichlet_uncapped does not",
    }.items()
    for other in others.split()
}

PARTITIONS = _inverted(
    {
        "by_column": "natural naturalid naturalidpartitioner realistic byuser bywriter user",
        "dirichlet": "dir lda hetero labeldir noniidlabeldir niid noniid",
        "dirichlet_per_client": "innerdirichlet innerdirichletpartitioner",
        "dirichlet_uncapped": "dirichletpartitioner",
        "exdir": "extdir extendeddirichlet",
        "iid": "homo uniform iidpartitioner",
        "pat": "path patho niid noniid",
        "pathological": "path patho niid noniid pathologicalpartitioner randomassign",
        "shards": "shardpartitioner",
    }
)

MODELS = _inverted(
    {"mlp": "dnn 2nn", "resnet18": "res18", "softmax": "logistic logisticregression logreg mlr"}
)

DATASETS = _inverted({"fashion_mnist": "fmnist", "tiny_imagenet": "tinyimagenet200"})
DATASETS |= _inverted({"folder": "images", "table": "csv"})

METRICS = _inverted({"auc": "auroc rocauc", "macro_f1": "f1 f1score f1macro"})

# All aliases, for names of unknown kind.
ALL_ALIASES = OPTIONS | PARTITIONS | DATASETS | MODELS | METRICS
