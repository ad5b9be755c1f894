"""Mixing matrices, similarities, products of stacked models, and the leaves that are shared."""
