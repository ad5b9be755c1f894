"""Totals of inputs by outcome, after the tests."""

from collections import Counter

from tests.fuzz.verdict import OUTCOMES


def pytest_terminal_summary(terminalreporter):
    total = Counter()
    for kind in ("passed", "failed"):
        for report in terminalreporter.stats.get(kind, ()):
            total.update(dict(report.user_properties))
    if total:
        counts = ", ".join(f"{total[outcome]:,} {outcome}" for outcome in OUTCOMES)
        terminalreporter.write_line(f"Malformed inputs: {counts}")
