"""Privacy covers all that leaves a client under every option (`fedjax_pfl.testing.withheld`)."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest

import fedjax_pfl as pfl
from fedjax_pfl.engine import compiled
from fedjax_pfl.testing.withheld import CLIENTS, SUMS, withhold_gradients, withhold_uploads
from fedjax_pfl.uploads import pipeline

ALL = {"participation": 1.0}
TOP_K = {"compress": "top_k", "compress_options": {"rate": 0.25}}
ADAPTIVE = {"dp_adaptive_clip": True}
ADAPTERS = {"lora_rank": 2}
LATE = {"stragglers": {1: 1, 3: 2}, **ALL}
HOST = {"client_state": "host"}
MOMENTUM = {"momentum": 0.5, "keep_optimizer_state": True}

# Options that add a release or a memory, each with algorithms that use it in different ways.
UPLOADS = [
    (CLIENTS | {"aggregator": "median"}, "fedavg", {}),
    (CLIENTS | {"aggregator": "krum"} | ALL, "fedrep", {}),
    (CLIENTS | {"aggregator": "rfa"}, "cwfedavg", {"wdr_weight": 0}),
    (CLIENTS | {"aggregator": "foolsgold"}, "ditto", {}),
    (CLIENTS | {"aggregator": "fltrust", "aggregator_options": {"root": 3}} | ALL, "fedavg", {}),
    (CLIENTS | {"aggregator": "cclip", "aggregator_options": {"keep_centre": True}}, "fedavg", {}),
    (CLIENTS | {"aggregator": "self_clip"}, "feddwa", {}),
    (CLIENTS | {"attack": "mimic", "attackers": [3]} | ALL, "fedavgm", {}),
    (CLIENTS | TOP_K | {"error_feedback": "ef"}, "feddwa", {}),
    (CLIENTS | TOP_K | {"error_feedback": "ef21"}, "scaffold", {}),
    (CLIENTS | {"compress": "rotate"}, "fedper", {}),
    (SUMS | {"secure_bits": 32}, "scaffold", {}),
    (CLIENTS | {"secure_bits": 32}, "fedper", {}),
    (SUMS | ADAPTIVE, "fedavg", {}),
    (SUMS | {"sampling": "poisson"}, "feddyn", {}),
    (SUMS | {"sampling": "poisson"}, "pfedme", {}),
    (CLIENTS | {"drift": "swap", "drift_rounds": [2]}, "fedper", {}),
    (CLIENTS | {"drift": "swap", "drift_rounds": [2]}, "cfl", {}),
    (CLIENTS | LATE, "fedasync", {}),
    (CLIENTS | LATE, "lga", {}),
    (CLIENTS | LATE, "perfedavg_async", {}),
    (CLIENTS | ADAPTERS, "fedavg", {}),
    (CLIENTS | ADAPTERS, "flora", {}),
    (CLIENTS | ADAPTERS, "fedex_lora", {}),
    (CLIENTS | HOST, "fedper", {}),
    (CLIENTS | HOST, "feddwa", {}),
    (CLIENTS | HOST | TOP_K | {"error_feedback": "ef"}, "ditto", {}),
    (CLIENTS | MOMENTUM, "fedprox", {}),
    (CLIENTS | MOMENTUM, "ditto", {}),
    (CLIENTS, "sfl", {"graph": "neighbours"}),
]
REFUSED = [
    (CLIENTS | {"arrivals": {3: 2}}, "feddwa", "accounts for a fixed set of clients"),
    (CLIENTS | ADAPTERS, "hetlora", "the server knows the ranks"),
    (CLIENTS, "fedpac", "counts of samples, in the upload 'statistics'"),
    (CLIENTS, "ifca", "the choice of a cluster beside its uploads, which dp does not cover"),
]
GRADIENTS = [
    (ADAPTERS, "fedex_lora", {}),
    (ADAPTERS, "hetlora", {}),
    (LATE, "lga", {}),
    (LATE, "perfedavg_async", {}),
    (HOST, "feddwa", {}),
    (MOMENTUM, "fedper", {}),
    ({"drift": "swap", "drift_rounds": [2]}, "cfl", {}),
    ({"arrivals": {3: 2}}, "ditto", {}),
    ({"batch_order": "poisson"}, "apfl", {}),
    ({"local_epochs": 2, "participation": 1.0}, "scaffold", {}),
    ({"aggregator": "median", **TOP_K, "error_feedback": "ef"}, "fedavg", {}),
    ({}, "sfl", {"graph": "neighbours"}),
    ({}, "cwfedavg", {"wdr_weight": 0}),
    ({}, "fedphp", {"regularizer": "distillation"}),
]


@pytest.fixture(autouse=True)
def double_precision():
    with jax.enable_x64(True):
        yield


def named(cases):
    """Cases by their algorithm and options."""
    return [
        pytest.param(options, name, settings, id="-".join([name, *options, *settings]))
        for options, name, settings in cases
    ]


@pytest.mark.costly
@pytest.mark.parametrize(("options", "name", "settings"), named(UPLOADS))
def test_withheld_uploads(options, name, settings):
    assert withhold_uploads(pfl.make_algorithm(name, settings), **options) is None


@pytest.mark.parametrize(("options", "name", "words"), REFUSED)
def test_refused_sentences(options, name, words):
    said = withhold_uploads(pfl.make_algorithm(name), **options)
    assert words in said and said.count(". ") == 0


@pytest.mark.costly
@pytest.mark.parametrize(("options", "name", "settings"), named(GRADIENTS))
def test_withheld_gradients(options, name, settings):
    assert withhold_gradients(pfl.make_algorithm(name, settings), **options) is None


# ------------------------------------------------------------------ faults that they find


class StartsFromAll(pfl.core.ALGORITHMS["fedper"]):
    """With a fault in the engine: new clients begin with the mean of private leaves."""


class CountsFromZero(pfl.core.ALGORITHMS["fedavg"]):
    """With a fault in the engine: a client within the adaptive clip counts 1, not 1/2."""


def count_from_zero(bound, norms, mask, noise, expected, quantile, rate):
    share = (jnp.sum(mask & (norms <= bound)) + noise) / expected
    return bound * jnp.exp(-rate * (share - quantile))


class LeavesOutFailed(pfl.core.ALGORITHMS["sfl"]):
    def _weights(self, ctx, cohort, server, sent):
        there = replace(cohort, mask=cohort.mask & ~cohort.diverged)
        return super()._weights(ctx, there, server, sent)


class AsksByLoss(pfl.core.ALGORITHMS["fedfomo"]):
    also_sent = ()


class CountsMembers(pfl.core.ALGORITHMS["feddyn"]):
    def server_update(self, ctx, *args):
        seen = replace(ctx, federation=replace(ctx.federation, uploads=None))
        return super().server_update(seen, *args)


class CountsSteps(pfl.core.ALGORITHMS["fedsam"]):
    def check(self, federation):
        pass


class CountsClasses(pfl.core.ALGORITHMS["fedlc"]):
    unprotected = ()


class Remembers(pfl.core.ALGORITHMS["knnper"]):
    unprotected = ()


FAULTS = [
    (CountsFromZero, {}, withhold_uploads, SUMS | ADAPTIVE, "absence .* others hold"),
    (StartsFromAll, {}, withhold_uploads, CLIENTS, "samples and labels .* models of new clients"),
    (
        LeavesOutFailed,
        {"graph": "neighbours"},
        withhold_uploads,
        CLIENTS,
        "overflow .* others hold",
    ),
    (
        AsksByLoss,
        {"downloads": 2, "exploration": 0.0},
        withhold_uploads,
        CLIENTS | ALL,
        "samples and labels .* received",
    ),
    (CountsMembers, {}, withhold_uploads, SUMS, "absence .* others hold"),
    (CountsSteps, {"global_momentum": True}, withhold_uploads, SUMS, "number of samples .* hold"),
    (CountsClasses, {}, withhold_gradients, {}, "label of a sample without a gradient .* hold"),
    (Remembers, {}, withhold_gradients, {}, "samples and labels .* models of others"),
]


@pytest.mark.costly
@pytest.mark.parametrize(("cls", "settings", "withhold", "options", "message"), FAULTS)
def test_what_noise_does_not_cover_is_noticed(
    cls, settings, withhold, options, message, made, monkeypatch
):
    if cls is StartsFromAll:
        monkeypatch.setattr(compiled, "state_for_new_clients", lambda algorithm, ctx, state: state)
    if cls is CountsFromZero:
        monkeypatch.setattr(pipeline, "next_bound", count_from_zero)
    with pytest.raises(AssertionError, match=f"the {message}"):
        withhold(replace(made(cls), **settings), **options)
