"""The shared checks of algorithms."""

from fedjax_pfl.testing.checks import CHECKS
from fedjax_pfl.testing.suite import check_algorithm

__all__ = ["CHECKS", "check_algorithm"]
