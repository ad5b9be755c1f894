"""The papers' figures and ablations, drawn from finished runs: `python -m experiments.figures`."""
