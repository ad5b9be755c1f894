"""The shared checks of algorithms, and audits of differential privacy."""

from fedjax_pfl.testing.audit import audit_privacy, audit_uploads
from fedjax_pfl.testing.checks import CHECKS
from fedjax_pfl.testing.guesses import Audit
from fedjax_pfl.testing.suite import check_algorithm
from fedjax_pfl.testing.withheld import withhold_gradients, withhold_uploads

__all__ = [
    "CHECKS",
    "Audit",
    "audit_privacy",
    "audit_uploads",
    "check_algorithm",
    "withhold_gradients",
    "withhold_uploads",
]
