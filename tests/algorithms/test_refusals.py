"""What algorithms refuse: hyperparameters, and federations that they can't work on."""

import pytest

import fedjax_pfl as pfl
from fedjax_pfl.testing.toys import toy_federation

# By algorithm: (hyperparameters, options of the federation if any, the message).
REFUSED = {
    "apfl": [
        ({"alpha": 1.5}, r"alpha must be in \[0, 1\], got 1\.5"),
        ({"alpha": "nan"}, "alpha must be"),
        ({"adapt_alpha": "always"}, "adapt_alpha.*'always'"),
        ({"form": "mixture"}, "form.*'mixture'"),
        ({"weighting": "sizes"}, "weighting.*'sizes'"),
    ],
    "ditto": [
        ({"pull": -1}, "pull must be at least 0, got -1"),
        ({"personal_epochs": -1}, "personal_epochs must be at least 0, got -1"),
        (
            {"personal_epochs": 2, "batches": "shared"},
            "personal_epochs must be 0 with batches=shared, which serve both models, got 2",
        ),
        ({"batches": "common"}, "batches.*'common'"),
        ({"weighting": "sizes"}, "weighting.*'sizes'.*'size'"),
    ],
    "fedala": [
        ({"weight_rate": -1}, "weight_rate must be at least 0, got -1"),
        ({"layers": 0}, "layers must be at least 1, got 0"),
        ({"layers": 3}, r"layers must be in 1\.\.2.*\(fc_0, head\), got 3"),
        ({"percent": 0}, r"percent must be in 1\.\.100, got 0"),
        ({"percent": 101}, r"percent must be in 1\.\.100, got 101"),
        ({"threshold": -0.1}, r"threshold must be at least 0, got -0\.1"),
        ({"most_passes": 0}, "most_passes must be at least 1, got 0"),
        ({"who": "nobody"}, "who.*'nobody'"),
    ],
    "fedavg_ft": [
        ({"budget": "yes"}, "budget.*'yes'"),
        ({"budget": True, "pull": -1}, "pull must be at least 0, got -1"),
        ({"pull": 0.1}, "pull must be 0 without budget=true, got 0.1"),
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
        ({"part": "all"}, "part.*'all'"),
        ({"weighting": "sizes"}, "weighting.*'sizes'"),
    ],
    "fedfomo": [
        ({"downloads": -1}, "downloads must be at least 0, got -1"),
        ({"exploration": 1.5}, "exploration must be in 0..1, got 1.5"),
        ({"exploration": "nan"}, "exploration"),
        ({"exploration_decay": -0.1}, "exploration_decay must be at least 0"),
        ({"norm": "l3"}, "norm.*'l3'"),
        ({"affinity": "softmax"}, "affinity.*'softmax'"),
        ({"fallback": "own"}, "fallback.*'own'"),
    ],
    "fedper": [
        ({"personal_layers": -1}, "personal_layers must be at least 0, got -1"),
        ({"personal_layers": 3}, r"personal_layers must be in 0\.\.2.*\(fc_0, head\), got 3"),
        ({"weighting": "sizes"}, "weighting.*'sizes'"),
    ],
    "fedprox_ft": [
        ({"mu": -1}, "mu must be at least 0, got -1"),
        ({"fine_tune_epochs": -1}, "fine_tune_epochs must be at least 0, got -1"),
        ({"pull": 0.1}, "pull must be 0 without budget=true, got 0.1"),
    ],
    "fedrep": [
        ({"head_epochs": -1}, "head_epochs must be at least 0, got -1"),
        ({"final_head_epochs": -1}, "final_head_epochs must be at least 0, got -1"),
        ({"weighting": "sizes"}, "weighting.*'sizes'"),
    ],
    "lg_fedavg": [
        ({"global_layers": -1}, "global_layers must be at least 0, got -1"),
        ({"global_layers": 3}, r"global_layers must be in 0\.\.2.*\(fc_0, head\), got 3"),
        ({"global_end": "top"}, "global_end.*'top'"),
        ({"warm_rounds": -1}, "warm_rounds must be at least 0, got -1"),
    ],
    "moon": [
        ({"mu": -1}, "mu must be at least 0"),
        ({"mu": "nan"}, "mu must be"),
        ({"tau": 0}, "tau must be above 0"),
        ({"weighting": "sizes"}, "weighting.*'sizes'"),
    ],
    "mrmtl": [
        ({"pull": -1}, "pull must be at least 0, got -1"),
        ({"weighting": "sizes"}, "weighting.*'sizes'.*'size'"),
    ],
    "perfedavg": [
        ({"inner_factor": -1}, "inner_factor must be at least 0, got -1"),
        ({"delta": 0}, "delta must be above 0, got 0"),
        ({"passes": 0}, "passes must be at least 1, got 0"),
        ({"product": "differences"}, "product must be 'exact' in first order, got 'differences'"),
        ({"variant": "second_order"}, "variant.*'second_order'"),
        ({"weighting": "sizes"}, "weighting.*'sizes'"),
    ],
    "pfedme": [
        ({"pull": -1}, "pull must be at least 0, got -1"),
        ({"decay": "nan"}, "decay must be"),
        ({"inner_steps": 0}, "inner_steps must be at least 1, got 0"),
        ({"server_rate": 0}, "server_rate must be above 0, got 0"),
        ({"personal_rate": 0}, "personal_rate must be above 0, got 0"),
        (
            {"pull": 100, "decay": 0},
            r"personal_rate must be below 2 / \(pull \+ decay\) = 0\.02: theta .*, got 0\.05",
        ),
        ({"who": "all"}, "who.*'all'"),
        ({"weighting": "sizes"}, "weighting.*'sizes'"),
    ],
}


@pytest.mark.parametrize(
    ("name", "refused"), [(name, row) for name, rows in REFUSED.items() for row in rows]
)
def test_refusals(name, refused):
    settings, *options, message = refused
    federation = toy_federation(**dict(*options))
    with pytest.raises(pfl.InputError, match=message):
        pfl.Simulation(pfl.make_algorithm(name, settings), federation).check()
