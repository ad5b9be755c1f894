"""Names in other spellings, other libraries' names, and what a misspelt name resembles."""

import pytest

import fedjax_pfl as pfl
from fedjax_pfl.data.sources.source_registry import Source
from fedjax_pfl.utils import aliases, name_matching


def words(text):
    return text.split()


# Every algorithm of the specification, whether it is there yet or not.
CANONICAL = words("""
local fedavg fedavg_ft fedavgm fedprox fedprox_ft fedupdate scaffold weight_erosion waffle
cwfedavg spfl spfl_w lga plga fedasync fedavg_sync fedavg_async feddwa pfedla heurpfedla apfl
perfedavg perfedavg_spfl perfedavg_async pfedme ditto fedamp heurfedamp fedfomo apple cfl ifca
sfl l2c fedrod fedrep fedper fedbn lg_fedavg fedbabu pfedhn fedadagrad fedadam fedyogi feddyn
moon fedproto fedala fedexp fedex_lora flora fednova fedlc feddbe fedcac mrmtl fedrs fedntd fedsam
fedphp pfl_da pfedsim fedpac fedcp fedgc knnper floco ccvr fedgh gpfl fedas feddistill fedgen
fedkd fml pfedfda fedmtl fedcross fedem
""")
SPELT = {
    "FedAvg": "fedavg", "FedAvg-FT": "fedavg_ft", "FedAvgFT": "fedavg_ft", "FedAvg + FT": None,
    "FEDAVG+FT": "fedavg_ft", "FedFT": "fedavg_ft", "PerAvg": "perfedavg",
    "Per-FedAvg": "perfedavg", "PerFedAvg": "perfedavg", "per_fed_avg": "perfedavg",
    "LG-FedAvg": "lg_fedavg", "LGFedAvg": "lg_fedavg", "lg–fedavg": "lg_fedavg",
    "pFedMe": "pfedme", "FedROD": "fedrod", "Fed-RoD": "fedrod", "HeurFedAMP": "heurfedamp",
    "HeurpFedLA": "heurpfedla", "FedAvgM": "fedavgm", "FedBABU": "fedbabu", "FedALA": "fedala",
    "FedProto": "fedproto", "FedDyn": "feddyn", "MOON": "moon", "SCAFFOLD": "scaffold",
    "FedProx-FT": "fedprox_ft", "ClusterFL": "cfl", "cwFedAVG": "cwfedavg", "SPFL-w": "spfl_w",
    "Weight Erosion": "weight_erosion", "FedAvg(Async)": "fedavg_async", "Local": "local",
    "Local-Only": "local", "L2C": "l2c", "Fed.Per": "fedper", "FedAvgDBE": "feddbe",
}  # fmt: skip
# Names of others without a counterpart: none of ours is suggested for them.
FOREIGN = words("""
GPFL FedGen FedPAC FedCP FedKD FedPHP FedMTL FML FedGH FedDistill FedPCL FedTGP FedCAC FedNTD
FedCross FedLC FedSR ADCOL FedIIR FedFed Floco Elastic CCVR MetaFed kNN-Per pFedSim
FedAP FedNova FedDC FedCM FedCurv FedMA FedDF FedEM pFedGate pFedGraph pFedGP FedTP QFedAvg
FedMedian Krum Bulyan FedTrimmedAvg FedXgb FedHKD HeteroFL FjORD FLANDERS TAMUNA FedSGD SubFedAvg
""")
# Those that have come since are ours.
OURS = {name.replace("_", "") for name in (*CANONICAL, *pfl.core.ALGORITHMS)}
FOREIGN = [name for name in FOREIGN if name.lower().replace("-", "") not in OURS]
# The same, before anybody has put them into the table.
UNHEARD = words("""
FedQZ pFedXY AQFL FedUOT FedCLS pFedPT FedIFL
""")
NEAR = {
    "fedavgg": "fedavg", "fedpor": "fedper", "scafold": "scaffold", "fedprx": "fedprox",
    "pfedlaa": "pfedla", "heurpfdla": "heurpfedla", "fedasyn": "fedasync", "wafle": "waffle",
    "prox": "fedprox", "feddaw": "feddwa", "fdeavg": "fedavg", "fedbabe": "fedbabu",
    "fedagv": "fedavg", "fedreep": "fedrep", "dito": "ditto", "pfedhm": None, "fedadan": "fedadam",
}  # fmt: skip


def stands_for(name):
    return name_matching.find_matches(name, CANONICAL, aliases.ALGORITHMS)


def resembles(name):
    return name_matching.nearest(name, CANONICAL, name_matching.SHARED)


@pytest.mark.parametrize("name", SPELT)
def test_other_spellings_of_algorithms(name):
    ours = SPELT[name] or "fedavg_ft"
    assert stands_for(name) == [ours]
    if ours in pfl.core.ALGORITHMS:
        assert pfl.core.algorithm_name(name) == ours
        assert pfl.make_algorithm(name).name == ours


@pytest.mark.parametrize("name", CANONICAL)
def test_every_name_of_ours_stands_for_itself(name):
    for spelt in (name, name.upper(), name.replace("_", "-"), name.replace("_", "")):
        assert stands_for(spelt) == [name]


@pytest.mark.parametrize("name", FOREIGN)
def test_nothing_is_suggested_for_algorithms_that_are_not_here(name):
    assert stands_for(name) == []
    with pytest.raises(pfl.InputError) as caught:
        pfl.core.algorithm_name(name)
    assert str(caught.value).startswith(f"Unknown algorithm {name!r}. ")
    assert "Did you mean" not in str(caught.value)
    word = name_matching.normalized(name)
    if word in aliases.ABSENT:
        why = aliases.REASONS.get(word, "It is not in this version.")
        assert f" {why} Valid: " in str(caught.value)


def test_an_absent_algorithm_may_have_its_reason():
    """FedPCL, in the command as well; a name among the runs of a table is only unknown there."""
    assert {*aliases.REASONS} <= aliases.ABSENT
    for name in ("FedPCL", "fed-pcl"):
        with pytest.raises(pfl.InputError, match="not here: its clients train on joined features"):
            pfl.make_algorithm(name)
    with pytest.raises(pfl.InputError, match=r"'MultiKrum'\. It is an option"):
        pfl.make_algorithm("MultiKrum")
    assert {*aliases.RULES.values()} <= {*pfl.federation.threat_options.AGGREGATORS}
    with pytest.raises(pfl.InputError, match=r"^Unknown run 'FedPCL'\. Valid: fedavg\.$"):
        pfl.core.algorithm_name("FedPCL", ["fedavg"], "run")


@pytest.mark.parametrize("name", UNHEARD)
def test_nothing_is_suggested_where_nothing_is_near(name):
    assert resembles(name) is None


@pytest.mark.parametrize("name", NEAR)
def test_misspelt_algorithms(name):
    assert resembles(name) == NEAR[name]


def test_fedper_does_not_resemble_fedupdate():
    others = [name for name in CANONICAL if name != "fedper"]
    assert name_matching.nearest("fedper", others, name_matching.SHARED) is None


def test_tables_of_other_names_are_about_ours():
    ours = {name for names in aliases.ALGORITHMS.values() for name in names}
    assert ours <= set(CANONICAL)
    assert {name for name, *_ in aliases.VARIANTS.values()} <= set(CANONICAL)
    plain = set(map(name_matching.normalized, CANONICAL))
    assert not plain & {*aliases.ALGORITHMS, *aliases.VARIANTS, *aliases.ABSENT}
    assert not {*aliases.ABSENT} & {*aliases.ALGORITHMS, *aliases.VARIANTS}
    for table in (aliases.ALGORITHMS, aliases.OPTIONS, aliases.PARTITIONS, aliases.WITHOUT):
        assert all(name == name_matching.normalized(name) for name in table)
    for table, known in (
        (aliases.PARTITIONS, pfl.data.RULES),
        (aliases.DATASETS, pfl.data.DATASETS),
    ):
        assert {name for names in table.values() for name in names} <= set(known)


def test_hyperparameters_that_others_call_something_else_are_told():
    for name, words in aliases.HYPERPARAMETERS.items():
        for word, ours in words.items():
            assert word == name_matching.normalized(word)
            with pytest.raises(pfl.InputError, match=f"{word.upper()}'. Did you mean {ours!r}"):
                pfl.make_algorithm(name, {word.upper(): 1})


def test_variants_are_told_with_their_hyperparameter():
    for name, (algorithm, key, value) in aliases.VARIANTS.items():
        if algorithm in pfl.core.ALGORITHMS:
            pfl.make_algorithm(algorithm, {key: value})
            with pytest.raises(pfl.InputError, match=f"It is '{algorithm}' with {algorithm}.{key}"):
                pfl.core.algorithm_name(name)


def test_ambiguous_names_are_refused_in_a_sentence():
    with pytest.raises(pfl.InputError) as caught:
        pfl.core.algorithm_name("FedOpt", CANONICAL)
    text = "The algorithm 'FedOpt' may be any of fedadagrad, fedadam, fedyogi: name one."
    assert str(caught.value) == text
    with pytest.raises(pfl.InputError, match=r"'My-Own' may be any of my_own, myown: name one"):
        pfl.core.algorithm_name("My-Own", ["my_own", "myown"])
    assert pfl.core.algorithm_name("myown", ["my_own", "myown"]) == "myown"


def test_synonyms_of_what_is_missing_resemble_nothing():
    with pytest.raises(pfl.InputError) as caught:
        pfl.core.algorithm_name("PerAvg", ["fedavg", "local"], "algorithm among the runs")
    assert str(caught.value) == "Unknown algorithm among the runs 'PerAvg'. Valid: fedavg, local."


def test_an_own_algorithm_wins_over_other_libraries_names():
    assert pfl.core.algorithm_name("gpfl", ["gpfl", "fedavg"]) == "gpfl"
    assert pfl.core.algorithm_name("GPFL", ["gpfl", "fedavg"]) == "gpfl"
    assert pfl.core.algorithm_name("PerAvg", ["peravg", "perfedavg"]) == "peravg"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("dir", "Did you mean 'dirichlet'?"),
        ("noniid", "Did you mean 'dirichlet' or 'pat' or 'pathological'?"),
        ("non-IID", "Did you mean 'dirichlet' or 'pat' or 'pathological'?"),
        ("extended_dirichlet", "Did you mean 'exdir'?"),
    ],
)
def test_partitions_of_other_libraries(given, said):
    with pytest.raises(pfl.InputError) as caught:
        pfl.data.rule_options(given)
    assert str(caught.value).startswith(f"Unknown partition rule {given!r}. {said} Valid: ")


def test_options_of_other_libraries():
    with pytest.raises(pfl.InputError, match=r"of local training 'lr'. Did you mean 'learn"):
        pfl.LocalTraining().changed(lr=0.1)
    assert name_matching.suggestions("f1", ["auc", "ece", "macro_f1"]) == ["macro_f1"]
    with pytest.raises(pfl.InputError, match=r"hyperparameter of 'feddwa' 'colour'\. Valid"):
        pfl.make_algorithm("FedDWA", {"colour": 1})


@pytest.mark.parametrize(
    ("given", "ours"),
    [
        ("FashionMNIST", "fashion_mnist"),
        ("Cifar10", "cifar10"),
        ("CIFAR-100", "cifar100"),
        ("MNIST", "mnist"),
        ("fmnist", "fashion_mnist"),
        ("TinyImagenet", "tiny_imagenet"),
        ("mine.npz", "mine.npz"),
    ],
)
def test_data_sets_of_other_libraries(given, ours, monkeypatch):
    assert name_matching.canonical_name(given, pfl.data.DATASETS, aliases.DATASETS) == ours
    if ours != given:
        result = object()
        monkeypatch.setitem(pfl.data.DATASETS, ours, Source("", lambda data_dir: result))
        assert pfl.load_dataset(given) is result


@pytest.mark.parametrize(
    ("given", "ours"),
    [("CNN", "cnn"), ("MLP", "mlp"), ("MLR", "softmax"), ("ResNet-18", "resnet18")],
)
def test_networks_of_other_libraries(given, ours):
    shape = (32, 32, 3)
    assert type(pfl.models.make_model(given, shape, 3)) is type(
        pfl.models.make_model(ours, shape, 3)
    )
    with pytest.raises(pfl.InputError, match=f"Unknown model '{given}s'"):
        pfl.models.make_model(f"{given}s", shape, 3)


def test_a_beginning_is_near_and_a_long_name_is_not():
    assert name_matching.nearest("imag", ["image_size", "columns"]) == "image_size"
    assert name_matching.nearest("x" * 10**6, ["x" * 50]) is None


def test_names_in_other_spellings():
    dataset = pfl.load_dataset("Digits")
    partition = pfl.make_partition("Dirichlet", dataset, 3, seed=0)
    assert partition.rule == "dirichlet"
    words = {"optimizer": "AdamW", "lr_schedule": "Cosine", "aggregator": "Trimmed-Mean"}
    federation = pfl.federate(dataset, partition, model="Softmax", input_scaling="RAW", **words)
    assert (federation.training.optimizer, federation.training.lr_schedule) == ("adamw", "cosine")
    assert pfl.make_algorithm("SPFL", {"weighting": "Paper"}).weighting == "paper"
