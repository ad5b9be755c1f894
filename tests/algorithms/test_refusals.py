"""What algorithms refuse: hyperparameters, and federations that they can't work on."""

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
        ({"alpha": 1.5}, r"alpha must be in \[0, 1\], got 1\.5"),
        ({}, {"share": "body"}, "apfl averages whole models"),
        (
            {"form": "logits"},
            {"extra_loss": WeightDistribution(1.0)},
            "take form='parameters'",
        ),
    ],
    "apple": [
        ({"relation_rate": -1}, "relation_rate must be"),
        ({"penalty_share": 1.5}, "penalty_share must be"),
        ({"relation_momentum": 1.0}, "relation_momentum must be"),
        ({}, {"share": "none"}, "apple mixes what clients share"),
    ],
    "ccvr": [
        ({"per_class": 0}, "per_class must be at least 1, got 0"),
        ({"epochs": -1}, "epochs must be at least 0, got -1"),
        ({}, {"share": "body"}, "ccvr averages whole models"),
    ],
    "cfl": [
        ({"mean_below": -1}, "mean_below must be at least 0, got -1"),
        ({"largest_above": -1}, "largest_above must be at least 0, got -1"),
        ({"first_split": -1}, "first_split must be at least 0, got -1"),
        ({"max_clusters": 0}, "max_clusters must be at least 1, got 0"),
        ({"linkage": "ward"}, "Unknown value of cfl.linkage 'ward'"),
        ({"gamma_max": -0.5}, "gamma_max must be at least 0, or -1 for no test, got -0.5"),
        ({"best_of_tree": True}, {"validation_size": 0}, "best_of_tree chooses by validation"),
        ({}, {"share": "body"}, "cfl averages whole models"),
    ],
    "ditto": [
        ({"proximal_weight": -1}, "proximal_weight must be at least 0, got -1"),
        ({"personal_epochs": -1}, "personal_epochs must be at least 0, got -1"),
        (
            {"personal_epochs": 2, "batches": "shared"},
            "personal_epochs must be 0 with batches=shared, which serve both models, got 2",
        ),
    ],
    "fedadagrad": [
        ({"b1": 1}, r"b1 must be in \[0, 1\), got 1"),
        ({"b2": 0.9}, "Unknown hyperparameter of 'fedadagrad' 'b2'"),
    ],
    "fedadam": [
        ({"server_rate": 0}, "server_rate must be above 0, got 0"),
        ({"tau": 0}, "tau must be above 0, got 0"),
        ({"v0": -1}, "v0 must be at least 0, got -1"),
    ],
    "fedala": [
        ({"weight_rate": -1}, "weight_rate must be at least 0, got -1"),
        ({"layers": 0}, "layers must be at least 1, got 0"),
        ({"layers": 3}, r"layers must be in 1\.\.2.*\(fc_0, head\), got 3"),
        ({"percent": 0}, r"percent must be in 1\.\.100, got 0"),
        ({"percent": 101}, r"percent must be in 1\.\.100, got 101"),
        ({"threshold": -0.1}, r"threshold must be at least 0, got -0\.1"),
        ({"max_passes": 0}, "max_passes must be at least 1, got 0"),
        ({}, {"share": "body"}, "fedala averages whole models"),
    ],
    "fedamp": [
        ({"sigma": 0}, "sigma must be above 0, got 0"),
        ({"alpha": -1}, "alpha must be at least 0"),
        ({"alpha": 0.26}, r"at most sigma / \(N - 1\) = 0.25 for 5 clients, got 0.26"),
        ({"proximal_weight": -1}, "proximal_weight must be at least 0, got -1"),
        ({"penalty": 1}, "Did you mean 'proximal_weight'"),
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
        ({"align_epochs": -1}, "align_epochs must be at least 0, got -1"),
        ({"align_rate": 0}, "align_rate must be above 0, got 0"),
        ({"align_batch": 0}, "align_batch must be at least 1, got 0"),
        ({}, {"model": "softmax"}, "fedas aligns bodies, and this network is only a head"),
    ],
    "fedavgm": [
        ({"server_momentum": 1}, r"server_momentum must be in \[0, 1\), got 1"),
        ({"server_momentum": -0.1}, r"server_momentum must be in \[0, 1\)"),
        ({"server_rate": 0}, "server_rate must be above 0, got 0"),
    ],
    "fedbabu": [
        ({"fine_tune_epochs": -1}, "fine_tune_epochs must be at least 0, got -1"),
        ({"fine_tune_rate": 0}, r"fine_tune_rate must be above 0, got 0"),
        ({"fine_tune_momentum": 1}, r"fine_tune_momentum must be in \[0, 1\), got 1"),
        ({}, {"model": "softmax"}, "fedbabu trains a body under a frozen head"),
    ],
    "fedcac": [
        ({"tau": 1.5}, r"tau must be in \[0, 1\], got 1\.5"),
        ({"beta": 0}, "beta must be above 0, got 0"),
        ({}, {"share": "none"}, "fedcac averages what clients share"),
    ],
    "fedcp": [
        ({"weight": -1}, "weight must be at least 0, got -1"),
        ({}, {"frozen": "head"}, "fedcp trains under a frozen global head, and params/head/bias"),
    ],
    "fedcross": [
        ({"alpha": 1.1}, r"alpha must be in \[0, 1\], got 1\.1"),
        ({"warmup_rounds": -1}, "warmup_rounds must be at least 0, got -1"),
        ({}, {"share": "body"}, "fedcross averages whole models"),
    ],
    "feddbe": [
        ({"kappa": -1}, "kappa must be at least 0, got -1"),
        ({"mu": 0}, r"mu must be in \(0, 1\], got 0"),
        ({"mu": 1.5}, "mu must be"),
    ],
    "feddwa": [
        ({"guidance_epochs": 0}, "guidance_epochs must be at least 1, or None, got 0"),
        ({}, {"share": "none"}, "compares clients by what they share"),
    ],
    "feddyn": [
        ({"alpha": 0}, "alpha must be above 0, got 0"),
        ({}, {"share": "body"}, "feddyn averages whole models"),
    ],
    "fedem": [
        ({"learners": 0}, "learners must be at least 1, got 0"),
        ({"new_client_passes": 0}, "new_client_passes must be at least 1, got 0"),
    ],
    "fedexp": [
        ({"epsilon": -1}, "epsilon must be at least 0, got -1"),
    ],
    "fedfomo": [
        ({"downloads": -1}, "downloads must be at least 0, got -1"),
        ({"exploration": 1.5}, "exploration must be in 0..1, got 1.5"),
        ({"exploration_decay": -0.1}, "exploration_decay must be at least 0"),
        ({}, {"validation_size": 0}, "fedfomo uses validation samples"),
        ({}, {"share": "none"}, "fedfomo mixes what clients share"),
    ],
    "fedgh": [
        ({"server_rate": -1}, "server_rate must be at least 0, got -1"),
        ({"server_epochs": 0}, "server_epochs must be at least 1, got 0"),
        ({"server_batch": 0}, "server_batch must be at least 1, got 0"),
        ({}, {"share": "all"}, "fedgh shares the head and nothing else"),
        ({}, {"model": "softmax"}, "fedgh learns bodies under a shared head"),
    ],
    "fedgc": [
        ({"weight": -1}, "weight must be at least 0, got -1"),
        ({}, {"share": "body"}, "fedgc averages whole models"),
        ({}, {"model": "softmax"}, "fedgc averages bodies, and this network is only a head"),
        ({}, {"model": NoBias()}, "fedgc compares classes of heads"),
    ],
    "fedgen": [
        ({"weight": -1}, "weight must be at least 0, got -1"),
        ({"generator_rate": -1}, "generator_rate must be at least 0, got -1"),
        ({"generator_steps": 0}, "generator_steps must be at least 1, got 0"),
        ({"noise_width": 0}, "noise_width must be at least 1, got 0"),
        ({"hidden_width": 0}, "hidden_width must be at least 1, got 0"),
        ({"generator_batch": 1}, "generator_batch must be at least 2, got 1"),
    ],
    "fedlc": [
        ({"tau": -1}, "tau must be at least 0, got -1"),
    ],
    "fedmtl": [
        ({"coupling": -0.5}, r"coupling must be at least 0, or -1 for 10\^-\(k \+ 1\)"),
        ({"ridge": -2}, "ridge must be at least 0"),
        ({}, {"share": "none"}, "fedmtl relates what clients share"),
    ],
    "fednova": [
        ({"proximal_weight": -1}, "proximal_weight must be at least 0, got -1"),
        ({}, {"optimizer": "adam"}, "fednova counts the effective steps of SGD"),
        (
            {},
            {"momentum": 0.9, "keep_optimizer_state": True},
            "fednova counts effective steps from a momentum of 0",
        ),
    ],
    "fedntd": [
        ({"beta": -1}, "beta must be at least 0, got -1"),
        ({"tau": 0}, "tau must be above 0, got 0"),
    ],
    "fedpac": [
        ({"weight": -1}, "weight must be at least 0, got -1"),
        ({"head_epochs": -1}, "head_epochs must be at least 0, got -1"),
        ({"head_rate": 0}, "head_rate must be above 0, got 0"),
        ({"cutoff": 1}, r"cutoff must be in \[0, 1\), got 1"),
        ({}, {"share": "body"}, "fedpac averages whole models and can't keep params/head"),
        ({}, {"model": "softmax"}, "fedpac learns a body under heads"),
        ({}, {"model": TwoLayers()}, "does not define its features"),
    ],
    "fedper": [
        ({"personal_layers": -1}, "personal_layers must be at least 0, got -1"),
        ({"personal_layers": 3}, r"personal_layers must be in 0\.\.2.*\(fc_0, head\), got 3"),
    ],
    "fedphp": [
        ({"weight": 2}, r"weight must be in \[0, 1\], got 2"),
        ({"inheritance": -1}, r"inheritance must be in \[0, 1\], got -1"),
        ({}, {"model": TwoLayers()}, "does not define its features"),
    ],
    "fedproto": [
        ({}, {"model": TwoLayers()}, "does not define its features"),
        (
            {},
            {"model": NoBias()},
            r"a layer called head, with kernel \[5, 3\] and bias \[3\]",
        ),
        ({"weight": -1}, "weight must be at least 0"),
    ],
    "fedprox": [
        ({"proximal_weight": -1}, "proximal_weight must be"),
        ({"slow_fraction": 1.1}, "slow_fraction must be"),
        ({"slow_fraction": -0.1}, "slow_fraction must be"),
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
        ({"proximal_weight": -1}, "proximal_weight must be at least 0, got -1"),
        ({"fine_tune_epochs": -1}, "fine_tune_epochs must be at least 0, got -1"),
        (
            {"fine_tune_proximal_weight": 0.1},
            "fine_tune_proximal_weight must be 0 without final_only=true, got 0.1",
        ),
    ],
    "fedrep": [
        ({"head_epochs": -1}, "head_epochs must be at least 0, got -1"),
        ({"final_head_epochs": -1}, "final_head_epochs must be at least 0, got -1"),
        ({"head_epochs": 0}, {"local_epochs": 0}, "step"),
        ({}, {"model": "softmax"}, "fedrep learns a body under heads"),
        ({}, {"frozen": "head"}, "in turn, and params/head/bias is frozen"),
    ],
    "fedrod": [
        ({"personal_weight": -1}, "personal_weight must be"),
        ({}, {"model": TwoLayers()}, "does not define its features"),
    ],
    "fedrs": [
        ({"alpha": 1.5}, r"alpha must be in \[0, 1\], got 1.5"),
    ],
    "fedsam": [
        ({"rho": -1}, "rho must be at least 0, got -1"),
        ({"eta": -1}, "eta must be at least 0, got -1"),
        ({"beta": 0}, r"beta must be in \(0, 1\], got 0"),
        ({"global_momentum": True}, {"share": "body"}, "fedsam averages whole models"),
    ],
    "fedyogi": [
        ({"b2": 1}, r"b2 must be in \[0, 1\), got 1"),
    ],
    "gpfl": [
        ({"weight": -1}, "weight must be at least 0, got -1"),
        ({"module_decay": -1}, "module_decay must be at least 0, got -1"),
    ],
    "heurfedamp": [
        ({"sigma": -1}, "sigma must be at least 0, got -1"),
        ({"proximal_weight": -1}, "proximal_weight must be at least 0, got -1"),
        ({"self_weight": 1.5}, "self_weight must be in 0..1, or -1 for 1/N"),
        ({"self_weight": -0.5}, "self_weight must be"),
    ],
    "heurpfedla": [({"retained": 0}, {"share": "none"}, "share")],
    "floco": [
        ({"corners": 0}, "corners must be at least 1, got 0"),
        ({"warmup_fraction": 1.5}, r"warmup_fraction must be in \[0, 1\], got 1\.5"),
        ({"rho": -1}, "rho must be at least 0, got -1"),
        ({}, {"share": "body"}, "and params/head/kernel is not shared: leave share and freeze out"),
        ({}, {"share": "head"}, "needs all of its corners, and params/corners is not shared"),
        ({}, {"share": "none"}, "needs all of its corners, and params/corners is not shared"),
        ({}, {"frozen": "head"}, "and params/head/kernel is not shared"),
    ],
    "ifca": [
        ({"clusters": 0}, "clusters must be at least 1, got 0"),
        ({"warmup_rounds": -1}, "warmup_rounds must be at least 0, got -1"),
        ({"initial": "seed"}, "Unknown value of ifca.initial 'seed'. Did you mean 'seeds'"),
        ({}, {"share": "body"}, "ifca averages whole models"),
        (
            {"averaging": "gradients"},
            {"model": OverflowingNormed(3, (5,))},
            "averaging=gradients updates no running statistics",
        ),
    ],
    "knnper": [
        ({"neighbours": 0}, "neighbours must be at least 1, got 0"),
        ({"weight": 1.5}, r"weight must be in \[0, 1\], got 1\.5"),
        ({"scale": 0}, "scale must be above 0, got 0"),
        ({"tuned": True}, {"validation_size": 0}, "knnper uses validation samples"),
    ],
    "l2c": [
        ({"logit_rate": -0.1}, "logit_rate must be"),
        ({"prune_after": -1}, "prune_after must be"),
        ({"neighbours": -1}, "neighbours must be"),
        ({"neighbours": 5}, "neighbours must be at most 4, got 5"),
        ({}, {"share": "none"}, "l2c mixes what clients share"),
    ],
    "lg_fedavg": [
        ({"global_layers": -1}, "global_layers must be at least 0, got -1"),
        ({"global_layers": 3}, r"global_layers must be in 0\.\.2.*\(fc_0, head\), got 3"),
        ({"warmup_rounds": -1}, "warmup_rounds must be at least 0, got -1"),
        ({"warmup_rounds": 1}, {"share": "head"}, "leave share to it, or take 0"),
    ],
    "feddistill": [
        ({"weight": -1}, "weight must be at least 0, got -1"),
    ],
    "fedkd": [
        ({"first_energy": 0}, r"first_energy must be in \(0, 1\], got 0"),
        ({"last_energy": 1.5}, r"last_energy must be in \(0, 1\], got 1.5"),
        ({}, {"model": TwoLayers()}, "does not define its features"),
    ],
    "fml": [
        ({"alpha": 1.5}, r"alpha must be in \[0, 1\], got 1.5"),
        ({"beta": -0.5}, r"beta must be in \[0, 1\], got -0.5"),
    ],
    "moon": [
        ({"mu": -1}, "mu must be at least 0"),
        ({"tau": 0}, "tau must be above 0"),
        ({}, {"model": TwoLayers()}, "does not define its features"),
    ],
    "mrmtl": [
        ({"proximal_weight": -1}, "proximal_weight must be at least 0, got -1"),
    ],
    "perfedavg": [
        ({"inner_factor": -1}, "inner_factor must be at least 0, got -1"),
        ({"delta": 0}, "delta must be above 0, got 0"),
        ({"passes": 0}, "passes must be at least 1, got 0"),
        ({"product": "differences"}, "product must be 'exact' in first order, got 'differences'"),
        ({}, {"frozen": "head"}, "all leaves, and some are frozen"),
        ({"passes": 2**25}, "take fewer epochs or steps"),
    ],
    "perfedavg_async": [({"local_updates": 0}, "local_updates must be in 1..10")],
    "pfedfda": [
        ({"min_samples": 0}, "min_samples must be at least 1, got 0"),
        ({"epsilon": 0}, r"epsilon must be in \(0, 1\], got 0"),
        ({}, {"model": "softmax"}, "pfedfda learns a body, and this network is only a head"),
    ],
    "pfedhn": [
        ({"server_rate": -1}, "server_rate must be at least 0, got -1"),
        ({"embedding_rate": -1}, "embedding_rate must be at least 0"),
        ({"server_decay": -1}, "server_decay must be at least 0"),
        ({"server_clip": -1}, "server_clip must be at least 0"),
        ({"clip": -1}, "clip must be at least 0"),
        ({"server_momentum": 1}, r"server_momentum must be in \[0, 1\), got 1"),
        ({"embedding_size": -1}, "embedding_size must be at least 0"),
        ({"hidden_size": 0}, "hidden_size must be at least 1"),
        ({"depth": -1}, "depth must be at least 0"),
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
        ({"proximal_weight": -1}, "proximal_weight must be at least 0, got -1"),
        ({"inner_steps": 0}, "inner_steps must be at least 1, got 0"),
        ({"server_rate": 0}, "server_rate must be above 0, got 0"),
        ({"personal_rate": 0}, "personal_rate must be above 0, got 0"),
        (
            {"proximal_weight": 100, "decay": 0},
            r"rate must be below 2 / \(proximal_weight \+ decay\) = 0\.02: theta .*, got 0\.05",
        ),
        ({}, {"share": "body"}, "pfedme averages whole models"),
    ],
    "pfedsim": [
        ({"warmup_fraction": 1.5}, r"warmup_fraction must be in \[0, 1\], got 1\.5"),
        ({}, {"share": "body"}, "pfedsim averages whole models"),
    ],
    "pfl_da": [
        ({"generic_weight": 1.5}, r"generic_weight must be in \[0, 1\], got 1\.5"),
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
        ({"alice": -1}, "alice must be a client, counted from 0, got -1"),
        ({"alice": 5}, r"alice must be a client in 0\.\.4, got 5"),
        ({"alice": 2, "everyone": True}, "alice must be absent with everyone, got 2"),
        ({"omega": "linear"}, r"omega must be a function \(r, R\) -> number, given from Python"),
        ({"initial_history": "even"}, "Valid: none, uniform"),
        ({"delta_omega": -3}, "delta_omega must be at least 0"),
        ({"server_rate": 0}, "server_rate must be above 0, got 0"),
    ],
    "weight_erosion": [
        ({"distance_penalty": -0.1}, r"distance_penalty must be at least 0, got -0\.1"),
        ({"size_penalty": -0.1}, r"size_penalty must be at least 0, got -0\.1"),
    ],
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
