"""For authors of algorithms: the suite of checks, and a toy federation."""

from fedjax_pfl.testing.suite import CHECKS, check_algorithm

__all__ = ["CHECKS", "check_algorithm"]
