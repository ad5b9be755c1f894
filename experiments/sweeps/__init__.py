"""Grids of sweeps, and the files that sweeps write."""
