"""Remarks of algorithms, above all on hyperparameters that switch a method off."""

import pytest

import fedjax_pfl as pfl
from fedjax_pfl.testing.toys import OverflowingNormed, toy_federation
from tests.algorithms.lora import ADAPTERS

SAMPLED = {"participation": 0.6}
NORMED = {"model": OverflowingNormed(3, (5,))}
FACTORS = "no adapters with both factors trained: FedAvg"
SENT = "models stay with their clients, mean features of classes are sent"
NEAREST = "scored by the nearest prototype among {}; its head's score is called head"
LABELS = "its graph joins clients that share a label"
LAST = "scored before its last local training"
LOCAL = "trained locally"
AFTER = "on a copy, after the last round only"


def ring(ids):
    return ids[:, None] * ids


# (algorithm, hyperparameters, options of the federation, remarks, of which ... stands for the rest)
REMARKS = [
    ("apfl", {"form": "logits"}, {}, []),
    ("apple", {}, {}, []),
    ("apple", {"relation_rate": 0}, {}, ["relation_rate is 0: relations stay as they began"]),
    ("cfl", {}, {}, []),
    ("cfl", {}, SAMPLED, ["made for full participation: a split moves only clients..."]),
    ("ditto", {}, {}, []),
    ("ditto", {"proximal_weight": 0}, {}, [f"proximal_weight is 0: what is scored was {LOCAL}"]),
    ("fedala", {}, {}, []),
    ("fedala", {}, SAMPLED, ["all clients adapt in every round, drawn or not"]),
    ("fedala", {"participants": "sampled"}, SAMPLED, []),
    ("fedamp", {}, {}, []),
    ("fedamp", {"proximal_weight": 7}, {"learning_rate": 0.1}, []),
    ("fedamp", {"proximal_weight": 8}, {}, ["a local step overshoots the mixture: rate x..."]),
    ("fedbabu", {"part": "head"}, {}, ["scored after 5 local epochs of the head, learning rate "
                                       f"0.001, optimizer SGD (momentum 0.9) {AFTER}"]),
    ("fedbn", {}, NORMED, []),
    ("fedbn", {}, NORMED | {"batch_norm": "local"}, []),
    ("fedbn", {}, NORMED | {"batch_norm": "shared"}, ["batch-norm is shared, as set by..."]),
    ("fedcac", {}, {}, []),
    ("fedcac", {"tau": 0}, {}, ["tau is 0: trained as FedAvg"]),
    ("feddbe", {}, {}, []),
    ("feddbe", {"kappa": 0}, {}, ["kappa is 0: features are not pulled to a common mean"]),
    ("feddpa", {}, {}, [FACTORS]),
    ("fedex_lora", {}, {}, [FACTORS]),
    ("fedex_lora", {}, ADAPTERS, []),
    ("fedfomo", {}, {}, [LAST]),
    ("fedfomo", {"downloads": 9}, {}, ["downloads all 4 others, not 9", LAST]),
    ("fedfomo", {}, {"train_sizes": (4,)}, ["downloads no other, not 4", LAST]),
    ("fedlc", {}, {}, []),
    ("fedlc", {"tau": 0}, {}, ["tau is 0: trained as FedAvg"]),
    ("fedlc", {"tau": 0, "denominator": "others"}, {}, []),
    ("fedmtl", {"coupling": 0.1}, {}, []),
    ("fednova", {}, {}, []),
    ("fedntd", {}, {}, []),
    ("fedntd", {"beta": 0}, {}, ["beta is 0: trained as FedAvg"]),
    ("fedper", {}, {"share": "all"}, ["shares all layers, as set by share"]),
    ("fedper", {}, {"share": "head"}, ["shares the head, as set by share"]),
    ("fedper", {}, {"share": "body"}, []),
    ("fedper", {}, {"share": lambda path: "kernel" in path}, ["shares fc_0, head, as set..."]),
    ("fedper", {}, {"model": "softmax"}, ["shares no layer of this network: local training"]),
    ("fedprox", {}, {"local_epochs": 2}, []),
    ("fedprox", {"proximal_weight": 0}, {}, ["proximal_weight is 0: trained as FedAvg"]),
    ("fedprox", {"slow_fraction": 0.5}, {"local_epochs": 2}, ["0.5 of a round's clients train..."]),
    ("fedprox_ft", {}, {}, ["scored after 1 local epoch on a copy"]),
    ("fedproto", {}, {}, [SENT, NEAREST.format("all classes")]),
    ("fedproto", {"eligible": "own"}, {}, [SENT, NEAREST.format("the client's own classes")]),
    ("fedrep", {"final_head_epochs": 2}, {}, [f"scored after 2 local epochs of the head {AFTER}"]),
    ("fedrep", {}, {"share": "all"}, ["shares all layers, as set by share"]),
    ("fedrs", {}, {}, []),
    ("fedrs", {"alpha": 1}, {}, ["alpha is 1: trained as FedAvg"]),
    ("fedsam", {}, {}, []),
    ("fedsam", {"rho": 0}, {}, ["rho is 0: trained as FedAvg"]),
    ("fedsam", {"adaptive": True, "rho": 0.7}, {}, []),
    ("fml", {}, {}, []),
    ("fml", {"alpha": 1}, {}, [f"alpha is 1: what is scored was {LOCAL}"]),
    ("hetlora", {}, {}, [FACTORS]),
    ("hetlora", {}, ADAPTERS, []),
    ("heurfedamp", {}, {}, ["weighs all other clients nearly alike: sigma is 1, and cosines..."]),
    ("heurfedamp", {"sigma": 5}, {}, []),
    ("lg_fedavg", {"warmup_rounds": 1}, {}, ["averaged all layers in the first round"]),
    ("local", {}, {"arrivals": {1: 2}}, []),
    ("local", {}, SAMPLED, ["all clients train in every round, drawn or not"]),
    ("local", {}, SAMPLED | {"arrivals": {1: 2}}, ["all clients that are there train..."]),
    ("moon", {}, {}, []),
    ("moon", {"mu": 0}, {}, ["mu is 0: trained as FedAvg"]),
    ("mrmtl", {}, {}, []),
    ("mrmtl", {"proximal_weight": 0}, {}, ["proximal_weight is 0: trained locally"]),
    ("pfedhn", {}, {}, []),
    ("pfl_da", {"generic_weight": 1.0, "mixed": "first_step"}, {}, []),
    ("pfl_da", {"generic_weight": 0.99}, {}, []),
    ("sfl", {}, {}, [LABELS]),
    ("sfl", {"graph": "learned"}, {}, [LABELS]),
    ("sfl", {"graph": "neighbours"}, {}, []),
    ("sfl", {"relation": ring}, {}, []),
    ("sfl", {"detached": True}, {}, [LABELS, "its norms have no gradient..."]),
    ("weight_erosion", {}, {}, ["its default distance_penalty of 0.006 is WAFFLE's for MNIST..."]),
    ("weight_erosion", {"distance_penalty": 0.036}, {}, []),
]  # fmt: skip
# Those of which only a part matters: (algorithm, hyperparameters, that part of the only remark).
PARTS = [
    ("fedmtl", {}, "coupling is 1e-03, by the model's size: nearly"),
    ("fedmtl", {"coupling": 0}, "coupling is 0: trained locally"),
    ("fedprox_ft", {"final_only": True}, AFTER),
    ("fedsam", {"adaptive": True}, "FedASAM has 0.7"),
    ("pfl_da", {"generic_weight": 1.0}, ""),
]


@pytest.mark.parametrize(("name", "settings", "options", "said"), REMARKS)
def test_remarks(name, settings, options, said):
    algorithm = pfl.make_algorithm(name, settings)
    found = algorithm.remarks(algorithm.prepare(toy_federation(**options)))
    cut = [one[: len(text) - 3] + "..." if text.endswith("...") else one
           for one, text in zip(found, said, strict=True)]  # fmt: skip
    assert cut == said


@pytest.mark.parametrize(("name", "settings", "part"), PARTS)
def test_part_of_a_remark(name, settings, part):
    algorithm = pfl.make_algorithm(name, settings)
    *_, told = algorithm.remarks(algorithm.prepare(toy_federation()))
    assert part in told


@pytest.mark.parametrize(
    ("name", "settings", "rounds", "said"),
    [
        ("ccvr", {"epochs": 0}, 1, "not calibrated"),
        ("ccvr", {"epochs": 1}, 1, "after the last round"),
        (
            "cfl",
            {"first_split": 2},
            2,
            "no cluster is split in the first 2 rounds",
        ),
        ("cfl", {"first_split": 2}, 3, None),
        ("pfedsim", {"warmup_fraction": 0.25}, 10, "the first 2 of 10 rounds are FedAvg's"),
    ],
)
def test_round_remarks(name, settings, rounds, said):
    told = pfl.make_algorithm(name, settings).round_remarks(toy_federation(), rounds)
    assert len(told) == (said is not None) and all(said in one for one in told)
