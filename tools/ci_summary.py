"""Add up the test reports of a CI run, name the failed sessions, and close with one plain line of counts."""

import sys
from pathlib import Path
from xml.etree import ElementTree


def count(report: Path) -> tuple[int, int, int]:
    """Passed, failed and skipped tests of one JUnit file."""
    suites = list(ElementTree.parse(report).getroot().iter("testsuite"))
    total, failures, errors, skipped = (
        sum(int(suite.get(key, "0")) for suite in suites) for key in ("tests", "failures", "errors", "skipped")
    )
    return total - failures - errors - skipped, failures + errors, skipped


def main(reports: Path, failed_sessions: list[str]) -> int:
    """Return 1 when a test or a session failed, or when no test ran at all."""
    counts = [count(report) for report in sorted(reports.glob("*.xml"))]
    passed, failed, skipped = (sum(column) for column in zip(*counts, strict=True)) if counts else (0, 0, 0)
    if failed_sessions:
        print("failed sessions:", ", ".join(failed_sessions))
    failed = max(failed, len(failed_sessions))
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return int(failed > 0 or passed == 0)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
