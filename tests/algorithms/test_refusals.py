"""What algorithms refuse: hyperparameters, and federations that they can't work on."""

import re
import typing
from dataclasses import fields
from functools import cache

import flax.linen as nn
import pytest

import fedjax_pfl as pfl
from fedjax_pfl.federation.regularizers import WeightDistribution
from fedjax_pfl.testing.toys import OverflowingNormed, TanhNetwork, toy_federation
from tests.algorithms.harness import TwoLayers


class NoBias(TanhNetwork):
    def setup(self):
        self.hidden, self.head = nn.Dense(5), nn.Dense(3, use_bias=False)


# By algorithm: (hyperparameters, options of the federation if any, the message); `frozen` names
# layers that the algorithm leaves frozen.
REFUSED = {
    "apfl": [
        ({}, {"share": "body"}, "apfl averages whole models"),
        (
            {"form": "logits"},
            {"extra_loss": WeightDistribution(1.0)},
            "take form='parameters'",
        ),
    ],
    "apple": [
        ({"relation_momentum": 1.0}, "relation_momentum must be"),
        ({}, {"share": "none"}, "apple mixes what clients share"),
    ],
    "ccvr": [
        ({}, {"share": "body"}, "ccvr averages whole models"),
    ],
    "cfl": [
        ({"linkage": "ward"}, "Unknown value of cfl.linkage 'ward'"),
        ({"gamma_max": -0.5}, "gamma_max must be at least 0, or -1 for no test, got -0.5"),
        ({"best_of_tree": True}, {"validation_size": 0}, "best_of_tree chooses by validation"),
        ({}, {"share": "body"}, "cfl averages whole models"),
    ],
    "ditto": [
        (
            {"personal_epochs": 2, "batches": "shared"},
            "personal_epochs must be 0 with batches=shared, which serve both models, got 2",
        ),
    ],
    "fedadagrad": [
        ({"b2": 0.9}, "Unknown hyperparameter of 'fedadagrad' 'b2'"),
    ],
    "fedala": [
        ({"layers": 3}, r"layers must be in 1\.\.2.*\(fc_0, head\), got 3"),
        ({"percent": 0}, r"percent must be in \[1, 100\], got 0"),
        ({"percent": 101}, r"percent must be in \[1, 100\], got 101"),
        ({}, {"share": "body"}, "fedala averages whole models"),
    ],
    "fedamp": [
        ({"alpha": -1}, "alpha must be at least 0"),
        ({"alpha": 0.26}, r"at most sigma / \(N - 1\) = 0.25 for 5 clients, got 0.26"),
        ({}, {"share": "none"}, "fedamp mixes what clients share"),
    ],
    "fedasync": [({"decay_start": 9}, "decay of mode 'plga'")],
    "fedavg_ft": [
        ({"final_only": "yes"}, "final_only.*'yes'"),
        (
            {"final_only": True, "fine_tune_proximal_weight": -1},
            "fine_tune_proximal_weight must be at least 0, got -1",
        ),
        (
            {"fine_tune_proximal_weight": 0.1},
            "fine_tune_proximal_weight must be 0 without final_only=true, got 0.1",
        ),
    ],
    "fedas": [
        ({}, {"model": "softmax"}, "fedas aligns bodies, and this network is only a head"),
    ],
    "fedbabu": [
        ({}, {"model": "softmax"}, "fedbabu trains a body under a frozen head"),
    ],
    "fedcac": [
        ({}, {"share": "none"}, "fedcac averages what clients share"),
    ],
    "fedcp": [
        ({}, {"frozen": "head"}, "fedcp trains under a frozen global head, and params/head/bias"),
    ],
    "fedcross": [
        ({}, {"share": "body"}, "fedcross averages whole models"),
    ],
    "feddwa": [
        ({"guidance_epochs": 0}, "guidance_epochs must be at least 1, got 0"),
        ({}, {"share": "none"}, "compares clients by what they share"),
    ],
    "feddyn": [
        ({}, {"share": "body"}, "feddyn averages whole models"),
    ],
    "fedfomo": [
        ({"exploration": 1.5}, r"exploration must be in \[0, 1\], got 1.5"),
        ({}, {"validation_size": 0}, "fedfomo uses validation samples"),
        ({}, {"share": "none"}, "fedfomo mixes what clients share"),
    ],
    "fedgh": [
        ({}, {"share": "all"}, "fedgh shares the head and nothing else"),
        ({}, {"model": "softmax"}, "fedgh learns bodies under a shared head"),
    ],
    "fedgc": [
        ({}, {"share": "body"}, "fedgc averages whole models"),
        ({}, {"model": "softmax"}, "fedgc averages bodies, and this network is only a head"),
        ({}, {"model": NoBias()}, "fedgc compares classes of heads"),
    ],
    "fedgen": [
        ({"generator_batch": 1}, "generator_batch must be at least 2, got 1"),
    ],
    "fedmtl": [
        ({"coupling": -0.5}, r"coupling must be at least 0, or -1 for 10\^-\(k \+ 1\)"),
        ({"ridge": -2}, "ridge must be at least 0"),
        ({}, {"share": "none"}, "fedmtl relates what clients share"),
    ],
    "fednova": [
        ({}, {"optimizer": "adam"}, "fednova counts the effective steps of SGD"),
        (
            {},
            {"momentum": 0.9, "keep_optimizer_state": True},
            "fednova counts effective steps from a momentum of 0",
        ),
    ],
    "fedpac": [
        ({}, {"share": "body"}, "fedpac averages whole models and can't keep params/head"),
        ({}, {"model": "softmax"}, "fedpac learns a body under heads"),
        ({}, {"model": TwoLayers()}, "does not define its features"),
    ],
    "fedper": [
        ({"personal_layers": 3}, r"personal_layers must be in 0\.\.2.*\(fc_0, head\), got 3"),
    ],
    "fedphp": [
        ({}, {"model": TwoLayers()}, "does not define its features"),
    ],
    "fedproto": [
        ({}, {"model": TwoLayers()}, "does not define its features"),
        (
            {},
            {"model": NoBias()},
            r"a layer called head, with kernel \[5, 3\] and bias \[3\]",
        ),
    ],
    "fedprox": [
        (
            {"slow_fraction": 0.2},
            {"local_epochs": 1},
            "fedprox's slow clients .* local_epochs must be at least 2, got 1",
        ),
        (
            {"slow_fraction": 0.2},
            {"local_steps": 4},
            "give local_epochs in place of local_steps, or slow_fraction=0",
        ),
    ],
    "fedprox_ft": [
        (
            {"fine_tune_proximal_weight": 0.1},
            "fine_tune_proximal_weight must be 0 without final_only=true, got 0.1",
        ),
    ],
    "fedrep": [
        ({"head_epochs": 0}, {"local_epochs": 0}, "step"),
        ({}, {"model": "softmax"}, "fedrep learns a body under heads"),
        ({}, {"frozen": "head"}, "in turn, and params/head/bias is frozen"),
    ],
    "fedrod": [
        ({}, {"model": TwoLayers()}, "does not define its features"),
    ],
    "fedsam": [
        ({"global_momentum": True}, {"share": "body"}, "fedsam averages whole models"),
    ],
    "heurfedamp": [
        ({"self_weight": 1.5}, "self_weight must be in 0..1, or -1 for 1/N"),
        ({"self_weight": -0.5}, "self_weight must be"),
    ],
    "heurpfedla": [({"retained": 0}, {"share": "none"}, "share")],
    "floco": [
        ({}, {"share": "body"}, "and params/head/kernel is not shared: leave share and freeze out"),
        ({}, {"share": "head"}, "needs all of its corners, and params/corners is not shared"),
        ({}, {"share": "none"}, "needs all of its corners, and params/corners is not shared"),
        ({}, {"frozen": "head"}, "and params/head/kernel is not shared"),
    ],
    "ifca": [
        ({"initial": "seed"}, "Unknown value of ifca.initial 'seed'. Did you mean 'seeds'"),
        ({}, {"share": "body"}, "ifca averages whole models"),
        (
            {"averaging": "gradients"},
            {"model": OverflowingNormed(3, (5,))},
            "averaging=gradients updates no running statistics",
        ),
    ],
    "knnper": [
        ({"tuned": True}, {"validation_size": 0}, "knnper uses validation samples"),
    ],
    "l2c": [
        ({"neighbours": 5}, "neighbours must be at most 4, got 5"),
        ({}, {"share": "none"}, "l2c mixes what clients share"),
    ],
    "lg_fedavg": [
        ({"global_layers": 3}, r"global_layers must be in 0\.\.2.*\(fc_0, head\), got 3"),
        ({"warmup_rounds": 1}, {"share": "head"}, "leave share to it, or take 0"),
    ],
    "fedkd": [
        ({}, {"model": TwoLayers()}, "does not define its features"),
    ],
    "moon": [
        ({}, {"model": TwoLayers()}, "does not define its features"),
    ],
    "perfedavg": [
        ({"product": "differences"}, "product must be 'exact' in first order, got 'differences'"),
        ({}, {"frozen": "head"}, "all leaves, and some are frozen"),
        ({"passes": 2**25}, "take fewer epochs or steps"),
    ],
    "perfedavg_async": [({"local_updates": 0}, r"local_updates must be in \[1, 10\]")],
    "pfedfda": [
        ({}, {"model": "softmax"}, "pfedfda learns a body, and this network is only a head"),
    ],
    "pfedhn": [
        ({"form": "mean"}, "Unknown value of pfedhn.form 'mean'. Did you mean 'mean_vjp'"),
        ({}, {"share": "none"}, "generates what clients share, and that is nothing here"),
        (
            {},
            {"model": OverflowingNormed(3, (5,)), "batch_norm": "shared"},
            "batch_norm must be 'affine_shared' or 'local', got 'shared'",
        ),
    ],
    "pfedla": [({}, {"share": "none"}, "share")],
    "pfedme": [
        ({"personal_rate": 0}, "personal_rate must be above 0, got 0"),
        (
            {"proximal_weight": 100, "decay": 0},
            r"rate must be below 2 / \(proximal_weight \+ decay\) = 0\.02: theta .*, got 0\.05",
        ),
        ({}, {"share": "body"}, "pfedme averages whole models"),
    ],
    "pfedsim": [
        ({}, {"share": "body"}, "pfedsim averages whole models"),
    ],
    "pfl_da": [
        ({}, {"model": "softmax"}, "this network is only a head"),
        ({}, {"share": "all"}, "pfl_da shares the head and nothing else"),
    ],
    "scaffold": [
        ({}, {"share": "body"}, "scaffold averages whole models"),
        ({}, {"frozen": "head"}, "scaffold trains whole models, and params/head/bias"),
    ],
    "spfl": [
        ({"layer_weights": (0.5, 0.5)}, "layer_weights must be"),
        ({"layer_weights": 0.5}, "layer_weights must be"),
        ({"weighting": "paper", "layer_weights": "1"}, "no effect"),
        ({"weighting": "paper"}, {"share": "body"}, "share"),
        ({}, {"share": "none"}, "share"),
    ],
    "waffle": [
        ({"alice": -1}, "alice must be at least 0, got -1"),
        ({"alice": 5}, r"alice must be a client in 0\.\.4, got 5"),
        ({"alice": 2, "everyone": True}, "alice must be absent with everyone, got 2"),
        ({"omega": "linear"}, r"omega must be a function \(r, R\) -> number, given from Python"),
        ({"initial_history": "even"}, "Valid: none, uniform"),
    ],
}


# By range: numbers outside and at its ends, and the hyperparameters that have it.
RANGES = {
    "at least 0": (
        (-1,),
        (0,),
        """
        apple.relation_rate apple.mu ccvr.epochs cfl.mean_below cfl.largest_above cfl.first_split
        cwfedavg.wdr_weight ditto.proximal_weight ditto.personal_epochs fedadagrad.v0 fedadam.v0
        fedala.weight_rate fedala.threshold fedamp.proximal_weight fedas.align_epochs
        fedasync.proximal_weight fedavg_ft.fine_tune_epochs fedbabu.fine_tune_epochs fedcp.weight
        fedcross.warmup_rounds feddbe.kappa feddistill.weight fedexp.epsilon fedfomo.downloads
        fedfomo.exploration_decay fedgc.weight fedgen.weight fedgen.generator_rate fedgh.server_rate
        fedlc.tau fednova.proximal_weight fedntd.beta fedpac.weight fedpac.head_epochs
        fedper.personal_layers fedproto.weight fedprox.proximal_weight fedprox_ft.proximal_weight
        fedprox_ft.fine_tune_epochs fedrep.head_epochs fedrep.final_head_epochs
        fedrod.personal_weight fedsam.rho fedsam.eta fedupdate.fine_tune_steps fedyogi.v0 floco.rho
        gpfl.weight gpfl.module_decay hetlora.tail_weight heurfedamp.sigma
        heurfedamp.proximal_weight heurpfedla.hypernetwork_rate heurpfedla.retained
        ifca.warmup_rounds l2c.logit_rate l2c.prune_after l2c.neighbours lg_fedavg.global_layers
        lg_fedavg.warmup_rounds moon.mu mrmtl.proximal_weight perfedavg.inner_factor
        pfedhn.server_rate pfedhn.embedding_rate pfedhn.server_decay pfedhn.server_clip pfedhn.clip
        pfedhn.embedding_size pfedhn.depth pfedla.hypernetwork_rate pfedme.proximal_weight
        pfedme.decay sfl.graph_weight sfl.global_weight waffle.delta_omega
        weight_erosion.distance_penalty weight_erosion.size_penalty
        """,
    ),
    "at least 1": (
        (0,),
        (1,),
        """
        ccvr.per_class cfl.max_clusters fedala.layers fedala.max_passes fedas.align_batch
        feddpa.instances feddwa.top_k fedem.learners fedem.new_client_passes fedgen.generator_steps
        fedgen.noise_width fedgen.hidden_width fedgh.server_epochs fedgh.server_batch floco.corners
        hetlora.min_rank heurpfedla.embedding_size heurpfedla.hidden_size ifca.clusters
        knnper.neighbours perfedavg.passes pfedfda.min_samples pfedhn.hidden_size
        pfedla.embedding_size pfedla.hidden_size pfedme.inner_steps sfl.neighbours sfl.layers
        """,
    ),
    "above 0": (
        (0,),
        (0.001,),
        """
        fedadagrad.server_rate fedadagrad.tau fedadam.server_rate fedadam.tau fedamp.sigma
        fedas.align_rate fedavgm.server_rate fedbabu.fine_tune_rate fedcac.beta feddyn.alpha
        fedntd.tau fedpac.head_rate fedyogi.server_rate fedyogi.tau knnper.scale moon.tau
        perfedavg.delta pfedme.server_rate scaffold.server_rate waffle.server_rate
        """,
    ),
    "in [0, 1]": (
        (-0.1, 1.1),
        (0, 1),
        """
        apfl.alpha apple.penalty_share fedasync.alpha fedcac.tau fedcross.alpha feddpa.local_weight
        feddpa.max_weight fednova.slow_fraction fedphp.weight fedphp.inheritance
        fedprox.slow_fraction fedprox_ft.slow_fraction fedrs.alpha floco.warmup_fraction fml.alpha
        fml.beta knnper.weight pfedsim.warmup_fraction pfl_da.generic_weight sfl.server_alpha
        """,
    ),
    "in [0, 1)": (
        (-0.1, 1),
        (0,),
        """
        fedadagrad.b1 fedadam.b1 fedadam.b2 fedavgm.server_momentum fedbabu.fine_tune_momentum
        fedpac.cutoff fedyogi.b1 fedyogi.b2 pfedhn.server_momentum sfl.learned_share spfl_w.memory
        """,
    ),
    "in (0, 1]": (
        (0, 1.1),
        (1,),
        """
        feddbe.mu fedkd.first_energy fedkd.last_energy fedsam.beta hetlora.gamma pfedfda.epsilon
        """,
    ),
}


@cache
def plain():
    return toy_federation()


@pytest.mark.parametrize(
    ("name", "refused"), [(name, row) for name, rows in REFUSED.items() for row in rows]
)
def test_refusals(name, refused):
    settings, *options, message = refused
    options = dict(*options)
    frozen = options.pop("frozen", None)
    federation = toy_federation(**options) if options else plain()
    federation = federation if frozen is None else federation.with_frozen(frozen)
    with pytest.raises(pfl.InputError, match=message):
        pfl.Simulation(pfl.make_algorithm(name, settings), federation).check()


@pytest.mark.parametrize(
    ("name", "words", "outside", "inside"),
    [
        (name, words, outside, inside)
        for words, (outside, inside, names) in RANGES.items()
        for name in names.split()
    ],
)
def test_refusals_by_range(name, words, outside, inside):
    algorithm, key = name.split(".")
    for number in outside:
        said = f"^{re.escape(name)} must be {re.escape(words)}, got {number}"
        with pytest.raises(pfl.InputError, match=said):
            pfl.make_algorithm(algorithm, {key: number})
    for number in inside:
        pfl.make_algorithm(algorithm, {key: number})


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
