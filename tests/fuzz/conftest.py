"""Totals of hostile inputs by outcome, after the tests."""

from collections import Counter

from tests.fuzz.guard import ACCEPTED, FAILED, REFUSED


def pytest_terminal_summary(terminalreporter):
    total = Counter()
    for kind in ("passed", "failed"):
        for report in terminalreporter.stats.get(kind, ()):
            total.update(dict(report.user_properties))
    counts = [f"{total[outcome]:,} {outcome}" for outcome in (ACCEPTED, REFUSED, FAILED)]
    if any(total.values()):
        terminalreporter.write_line(f"Hostile inputs: {', '.join(counts)}")
