"""Grids of runs: their cells, numbers and reports."""
