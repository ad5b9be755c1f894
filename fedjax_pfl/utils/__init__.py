"""Pytrees, random keys, errors and names, used by every package above."""
