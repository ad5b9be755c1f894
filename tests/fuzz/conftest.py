"""Totals of inputs by outcome, after the tests."""


def pytest_terminal_summary(terminalreporter):
    reports = terminalreporter.getreports("passed") + terminalreporter.getreports("failed")
    found = [one for report in reports for one in report.user_properties]
    for outcome in ("accepted", "refused", "failed"):
        if total := sum(times for name, times in found if name == outcome):
            terminalreporter.write_line(f"Malformed inputs {outcome}: {total:,}")
