"""Flags, and the experiments built from them."""
