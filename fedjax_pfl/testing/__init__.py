"""Conformance suite for algorithms."""

from fedjax_pfl.testing.suite import CHECKS, check_algorithm

__all__ = ["CHECKS", "check_algorithm"]
