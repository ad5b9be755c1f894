"""What algorithms refuse: hyperparameters, and federations that they can't work on."""

import re
import typing
from dataclasses import fields
from functools import cache

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl.federation.regularizers import WeightDistribution
from fedjax_pfl.testing.toys import OverflowingNormed, TanhNetwork, toy_federation
from tests.algorithms.harness import TwoLayers
from tests.algorithms.lora import ADAPTERS


class NoBias(TanhNetwork):
    def setup(self):
        self.hidden, self.head = nn.Dense(5), nn.Dense(3, use_bias=False)


class Scaled(nn.Module):
    """A network whose head has no kernel [features, outputs]."""

    def setup(self):
        self.head = nn.LayerNorm()

    def features(self, x):
        return x[:, :3]

    def __call__(self, x):
        return self.head(self.features(x))


def passes(batch_size):
    """Options with which algorithms may take more forward passes than can be counted."""
    sizes = {"train_sizes": (batch_size, 1), "test_sizes": (3, 3)}
    return {**sizes, "local_steps": 30_000_000, "batch_size": batch_size}


def edges(value, columns=None):
    """A relation of clients, all the same."""
    return lambda ids: jnp.full((len(ids), columns or len(ids)), value)


NORMED = OverflowingNormed(3, (5,))
SUMS = {"secure_bits": 32, "model": TanhNetwork()}
KEPT = {"keep_optimizer_state": True}
RANKS = {"model": TanhNetwork(), "validation_size": 0, "lora_ranks": "3,1,4", "lora_alpha": 4.0}
ONE_RANK = ADAPTERS | {"model": TanhNetwork()}
BOTH = "needs both factors of each adapter, and share"

# (algorithm, hyperparameters, options of the federation, the message); `frozen` names layers that
# the algorithm leaves frozen.
REFUSED = [
    ("apfl", {"form": "logits"}, {"extra_loss": WeightDistribution(1.0)}, "form='parameters'"),
    ("cfl", {"gamma_max": -0.5}, {}, "gamma_max must be at least 0, or -1 for no test, got -0.5"),
    ("cfl", {"best_of_tree": True}, {"validation_size": 0}, "best_of_tree chooses by validation"),
    ("cwfedavg", {}, {"share": "body"}, "'head' stays with its clients: give shares=labels"),
    (
        "ditto",
        {"personal_epochs": 2, "batches": "shared"},
        {},
        "personal_epochs must be absent without batches='own', got 2",
    ),
    ("fedadagrad", {"b2": 0.9}, {}, "Unknown hyperparameter of 'fedadagrad' 'b2'"),
    ("fedavg", {"lr": 0.1}, {}, r"learning_rate is an option of local .*: pfl\.federate\("),
    ("fedala", {"layers": 3}, {}, r"layers must be in 1\.\.2.*\(fc_0, head\), got 3"),
    ("fedala", {"percent": 0}, {}, r"percent must be in \[1, 100\], got 0"),
    ("fedala", {"percent": 101}, {}, r"percent must be in \[1, 100\], got 101"),
    ("fedamp", {"alpha": 0.26}, {}, r"at most sigma / \(N - 1\) = 0.25 for 5 clients, got 0.26"),
    ("fedasync", {"decay_start": 9}, {}, "absent without decay='hinge', got 9"),
    ("fedavg_ft", {"final_only": "yes"}, {}, "final_only.*'yes'"),
    ("fedavg_ft", {"fine_tune_proximal_weight": 0.1}, {}, "absent without final_only=True"),
    ("fedbn", {}, {}, "this network has none: it would be fedavg, with equal weights"),
    ("fedbn", {"weighting": "size"}, {}, r"this network has none: it would be fedavg\.$"),
    ("fedcp", {}, {"frozen": "head"}, "trains under a frozen global head, and params/head/bias"),
    ("fedcp", {}, {"model": Scaled()}, r"fedcp sums a head's kernel \[3, outputs\]"),
    ("fedcross", {}, {"participation": 0.5, "sampling": "poisson"}, "as many server models as"),
    ("fedcross", {}, {"arrivals": {0: 2}}, "as many server models as a round has clients"),
    ("feddbe", {}, SUMS | {"participation": 0.6}, "feddbe averages the features of all clients"),
    ("feddpa", {}, ADAPTERS | {"share": "*lora_a,head"}, BOTH),
    ("feddpa", {}, {"lora_ranks": "1,2"}, "feddpa needs adapters of one rank"),
    ("fedex_lora", {}, ADAPTERS | {"share": "*lora_a"}, BOTH),
    ("fedex_lora", {}, ADAPTERS | {"base_dtype": "bfloat16"}, "would round what it adds"),
    ("fedexp", {}, {"secure_bits": 32}, "server needs single models"),
    ("fedexp", {}, {"aggregator": "median"}, "that an aggregator could"),
    ("fedfomo", {}, {"validation_size": 0}, "fedfomo uses validation samples"),
    ("fedgh", {}, {"share": "all"}, "fedgh shares the head and nothing else"),
    ("fedgh", {}, {"share": "none"}, "nothing else, and .*head.* is private"),
    ("fedgc", {}, {"model": NoBias()}, "fedgc compares classes of heads"),
    ("fedgen", {"generator_batch": 1}, {}, "generator_batch must be at least 2, got 1"),
    ("fedmtl", {"coupling": -0.5}, {}, r"coupling must be at least 0, or -1 for 10\^-\(k \+ 1\)"),
    ("fedmtl", {"ridge": -2}, {}, "ridge must be at least 0"),
    ("fednova", {}, {"optimizer": "adam"}, "fednova counts the effective steps of SGD"),
    ("fednova", {}, KEPT | {"momentum": 0.9}, "momentum of 0.*leave keep_optimizer_state out"),
    ("fedntd", {}, passes(80), "fedntd would take 2,400,000,000 forward passes"),
    ("fedper", {"personal_layers": 3}, {}, r"must be in 0\.\.2.*\(fc_0, head\), got 3"),
    ("fedproto", {}, {"model": NoBias()}, r"called head, with kernel \[5, 3\] and bias \[3\]"),
    ("fedprox", {"slow_fraction": 0.2}, {"local_epochs": 1}, "must be at least 2, got 1"),
    ("fedprox", {"slow_fraction": 0.2}, {"local_steps": 4}, "in place of local_steps, or slow_"),
    ("fedrep", {"head_epochs": 0}, {"local_epochs": 0}, "step"),
    ("fedrep", {}, {"frozen": "head"}, "in turn, and params/head/bias is frozen"),
    ("fedsam", {"global_momentum": True}, {"share": "body"}, "fedsam averages whole models"),
    ("flora", {}, RANKS | {"freeze": "body,*lora_a"}, "with lora_ranks needs both factors"),
    ("fedavg", {}, RANKS, "fedavg needs adapters of one rank: give lora_rank in place"),
    ("hetlora", {}, RANKS | {"freeze": "body,*lora_a"}, "with lora_ranks needs both factors"),
    ("hetlora", {}, RANKS | {"share": "*lora_a,head"}, BOTH),
    ("hetlora", {}, RANKS | {"dp": "client", "dp_clip": 1.0}, "knows the ranks without noise"),
    ("hetlora", {}, RANKS | {"compress": "sign"}, "compress needs adapters of one rank"),
    ("hetlora", {}, ONE_RANK | {"compress": "sign"}, "hetlora prunes ranks, .* gamma=1, got 0.99"),
    ("heurfedamp", {"self_weight": 1.5}, {}, "self_weight must be in 0..1, or -1 for 1/N"),
    ("heurfedamp", {"self_weight": -0.5}, {}, "self_weight must be"),
    ("heurpfedla", {"retained": 2}, {"share": "body"}, "retained must be at most 1 blocks, got 2"),
    ("floco", {}, {"share": "body"}, "head/kernel is not shared: leave share and freeze out"),
    ("floco", {}, {"share": "head"}, "needs all of its corners, and params/corners is not shared"),
    ("floco", {}, {"frozen": "head"}, "and params/head/kernel is not shared"),
    ("ifca", {"initial": "seed"}, {}, "Unknown value of ifca.initial 'seed'. Did you mean 'seeds'"),
    ("ifca", {"averaging": "gradients"}, {"model": NORMED}, "updates no running statistics"),
    ("knnper", {"tuned": True}, {"validation_size": 0}, "knnper uses validation samples"),
    ("l2c", {"neighbours": 5}, {}, "neighbours must be at most 4, got 5"),
    ("lg_fedavg", {"global_layers": 3}, {}, r"must be in 0\.\.2.*\(fc_0, head\), got 3"),
    ("lg_fedavg", {"warmup_rounds": 1}, {"share": "head"}, "leave share to it, or take 0"),
    ("moon", {}, passes(40), "moon would take 2,400,000,000 forward passes"),
    ("perfedavg", {"product": "differences"}, {}, "without variant='hessian_free'"),
    ("perfedavg", {}, {"frozen": "head"}, "all leaves, and some are frozen"),
    ("perfedavg_async", {"local_updates": 0}, {}, r"local_updates must be in \[1, 10\]"),
    ("pfedhn", {}, {"model": NORMED, "batch_norm": "shared"}, "'affine_shared' or 'local', got 's"),
    ("pfedme", {"proximal_weight": 100, "decay": 0}, {}, r"must be below 2 / .* = 0\.02: theta"),
    ("pfl_da", {}, {"share": "all"}, "pfl_da shares the head and nothing else"),
    ("scaffold", {}, {"frozen": "head"}, "scaffold trains whole models, and params/head/bias"),
    ("sfl", {"relation": "ring"}, {}, "relation must be a function of the clients' ids"),
    ("sfl", {"relation": edges(1, 2)}, {}, r"edges \[5, 5\] of at least 0, all.*array \[5, 2\]"),
    ("sfl", {"relation": edges(-1)}, {}, r"must be edges \[5, 5\] of at least 0"),
    ("sfl", {"relation": edges(np.inf)}, {}, r"edges \[5, 5\] of at least 0, all finite"),
    ("sfl", {"relation": edges(1), "graph": "neighbours"}, {}, "relation or graph=neighbours, not"),
    ("spfl", {"layer_weights": (0.5, 0.5)}, {}, "layer_weights must be"),
    ("spfl", {"layer_weights": 0.5}, {}, "layer_weights must be"),
    ("spfl", {"weighting": "paper", "layer_weights": "1"}, {}, "without weighting='published'"),
    ("spfl", {"weighting": "paper"}, {"share": "body"}, "share"),
    ("waffle", {"alice": 5}, {}, r"alice must be a client in 0\.\.4, got 5"),
    ("waffle", {"alice": 2, "everyone": True}, {}, "absent without everyone=False, got 2"),
]
# (options of the federation, the message, the algorithms that refuse it).
FEDERATIONS = [
    ({"share": "body"}, "averages whole models and can't keep params/head",
     "apfl ccvr cfl fedala fedcross feddyn fedgc fedpac ifca pfedme pfedsim scaffold sfl"),
    ({"share": "none"}, "share",
     "apple fedamp fedcac feddwa fedfomo fedmtl heurpfedla l2c pfedhn pfedla spfl"),
    ({"model": "softmax"}, "this network is only a head",
     "fedas fedbabu fedgh fedgc fedpac fedrep pfedfda pfl_da"),
    ({"model": TwoLayers()}, "does not define its features",
     "fedpac fedphp fedproto fedrod fedkd moon"),
]  # fmt: skip
# What is near to what is refused: (algorithm, hyperparameters, options).
ACCEPTED = [
    ("cwfedavg", {"shares": "labels"}, {"share": "body"}),
    ("fedcac", {}, {"share": "body"}),
    ("feddbe", {}, SUMS),
    ("fedmtl", {}, {"share": "body"}),
    ("fedrep", {}, {"local_epochs": 0}),
    ("l2c", {"neighbours": 4}, {}),
    ("lg_fedavg", {"warmup_rounds": 1}, {}),
    ("moon", {}, passes(35)),
]


# Numbers outside of each range, and at its ends.
ENDS = {
    "at least 0": ((-1,), (0,)),
    "at least 1": ((0,), (1,)),
    "above 0": ((0,), (0.001,)),
    "in [0, 1]": ((-0.1, 1.1), (0, 1)),
    "in [0, 1)": ((-0.1, 1), (0,)),
    "in (0, 1]": ((0, 1.1), (1,)),
}
# The hyperparameters that have it.
RANGES = {
    "at least 0": """
        apple.mu apple.relation_rate ccvr.epochs cfl.first_split cfl.largest_above cfl.mean_below
        cwfedavg.wdr_weight ditto.personal_epochs ditto.proximal_weight fedadagrad.v0 fedadam.v0
        fedala.threshold fedala.weight_rate fedamp.alpha fedamp.proximal_weight fedas.align_epochs
        fedasync.proximal_weight fedavg_ft.fine_tune_epochs fedavg_ft.fine_tune_proximal_weight
        fedbabu.fine_tune_epochs fedcp.weight fedcross.warmup_rounds feddbe.kappa feddistill.weight
        fedexp.epsilon fedfomo.downloads fedfomo.exploration_decay fedgc.weight
        fedgen.generator_rate fedgen.weight fedgh.server_rate fedlc.tau fednova.proximal_weight
        fedntd.beta fedpac.head_epochs fedpac.weight fedper.personal_layers fedproto.weight
        fedprox.proximal_weight fedprox_ft.fine_tune_epochs fedprox_ft.proximal_weight
        fedrep.final_head_epochs fedrep.head_epochs fedrod.personal_weight fedsam.eta fedsam.rho
        fedupdate.fine_tune_steps fedyogi.v0 floco.rho gpfl.module_decay gpfl.weight
        hetlora.tail_weight heurfedamp.proximal_weight heurfedamp.sigma heurpfedla.hypernetwork_rate
        heurpfedla.retained ifca.warmup_rounds l2c.logit_rate l2c.neighbours l2c.prune_after
        lg_fedavg.global_layers lg_fedavg.warmup_rounds moon.mu mrmtl.proximal_weight
        perfedavg.inner_factor pfedhn.clip pfedhn.depth pfedhn.embedding_rate pfedhn.embedding_size
        pfedhn.server_clip pfedhn.server_decay pfedhn.server_rate pfedla.hypernetwork_rate
        pfedme.decay pfedme.proximal_weight sfl.global_weight sfl.graph_weight waffle.alice
        waffle.delta_omega weight_erosion.distance_penalty weight_erosion.size_penalty
        """,
    "at least 1": """
        ccvr.per_class cfl.max_clusters fedala.layers fedala.max_passes fedas.align_batch
        feddpa.instances feddwa.guidance_epochs feddwa.top_k fedem.learners fedem.new_client_passes
        fedgen.generator_steps fedgen.hidden_width fedgen.noise_width fedgh.server_batch
        fedgh.server_epochs floco.corners hetlora.min_rank heurpfedla.embedding_size
        heurpfedla.hidden_size ifca.clusters knnper.neighbours perfedavg.passes pfedfda.min_samples
        pfedhn.hidden_size pfedla.embedding_size pfedla.hidden_size pfedme.inner_steps sfl.layers
        sfl.neighbours
        """,
    "above 0": """
        fedadagrad.server_rate fedadagrad.tau fedadam.server_rate fedadam.tau fedamp.sigma
        fedas.align_rate fedavgm.server_rate fedbabu.fine_tune_rate fedcac.beta feddyn.alpha
        fedntd.tau fedpac.head_rate fedyogi.server_rate fedyogi.tau knnper.scale moon.tau
        perfedavg.delta pfedme.personal_rate pfedme.server_rate scaffold.server_rate
        waffle.server_rate
        """,
    "in [0, 1]": """
        apfl.alpha apple.penalty_share fedasync.alpha fedcac.tau fedcross.alpha feddpa.local_weight
        feddpa.max_weight fedfomo.exploration fednova.slow_fraction fedphp.inheritance fedphp.weight
        fedprox.slow_fraction fedprox_ft.slow_fraction fedrs.alpha floco.warmup_fraction fml.alpha
        fml.beta knnper.weight pfedsim.warmup_fraction pfl_da.generic_weight sfl.server_alpha
        """,
    "in [0, 1)": """
        apple.relation_momentum fedadagrad.b1 fedadam.b1 fedadam.b2 fedavgm.server_momentum
        fedbabu.fine_tune_momentum fedpac.cutoff fedyogi.b1 fedyogi.b2 pfedhn.server_momentum
        sfl.learned_share spfl_w.memory
        """,
    "in (0, 1]": """
        feddbe.mu fedkd.first_energy fedkd.last_energy fedsam.beta hetlora.gamma pfedfda.epsilon
        """,
}

# What has no effect without these.
NEEDS = {
    "fedsam.beta": {"global_momentum": True},
    "fedsam.eta": {"adaptive": True},
    "ifca.warmup_rounds": {"initial": "group_warmup"},
    "sfl.learned_share": {"graph": "learned"},
    "sfl.neighbours": {"graph": "neighbours"},
}


@cache
def plain():
    return toy_federation()


def checked(name, settings, options):
    """Make a federation and check the algorithm with it."""
    options = dict(options)
    frozen = options.pop("frozen", None)
    federation = toy_federation(**options) if options else plain()
    federation = federation if frozen is None else federation.with_frozen(frozen)
    pfl.Simulation(pfl.make_algorithm(name, settings), federation).check()


@pytest.mark.parametrize(("name", "settings", "options", "message"), REFUSED)
def test_refusals(name, settings, options, message):
    with pytest.raises(pfl.InputError, match=message):
        checked(name, settings, options)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [(name, options, message) for options, message, names in FEDERATIONS for name in names.split()],
)
def test_refusals_by_federation(name, options, message):
    with pytest.raises(pfl.InputError, match=message):
        checked(name, {}, options)


@pytest.mark.parametrize(("name", "settings", "options"), ACCEPTED)
def test_what_is_not_refused(name, settings, options):
    checked(name, settings, options)


@pytest.mark.parametrize(
    ("name", "words", "outside", "inside"),
    [
        (name, words, outside, inside)
        for words, (outside, inside) in ENDS.items()
        for name in RANGES[words].split()
    ],
)
def test_refusals_by_range(name, words, outside, inside):
    algorithm, key = name.split(".")
    for number in outside:
        said = f"^{re.escape(name)} must be {re.escape(words)}, got {number}"
        with pytest.raises(pfl.InputError, match=said):
            pfl.make_algorithm(algorithm, {key: number})
    for number in inside:
        pfl.make_algorithm(algorithm, NEEDS.get(name, {}) | {key: number})


@pytest.mark.parametrize("name", sorted(pfl.core.ALGORITHMS))
def test_refusals_by_type(name):
    """A hyperparameter takes no unknown word, and no number that is none."""
    algorithm = type(pfl.make_algorithm(name))
    types = typing.get_type_hints(algorithm)
    for field in fields(algorithm):
        if typing.get_origin(types[field.name]) is typing.Literal:
            value, said = "x", f"Unknown value of {name}.{field.name} 'x'"
        elif types[field.name] in (int, float):
            value, said = "nan", f"{name}.{field.name} must be a .*number, got 'nan'"
        else:
            continue
        with pytest.raises(pfl.InputError, match=said):
            pfl.make_algorithm(name, {field.name: value})
