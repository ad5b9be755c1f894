"""Figures of any finished runs: `python -m experiments.figures`."""
