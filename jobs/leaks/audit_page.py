"""Makes the page of an audit: what was found first, then a row for each check."""

from datetime import UTC, datetime

from graphmill.jobs.leaks.audit import Audit
from graphmill.jobs.leaks.checks import CHECKS, Outcome
from graphmill.jobs.reporting.page import render


def audit_page(audit: Audit) -> str:
    """The page as one HTML file."""
    rows = [[_name(each), _state(each), CHECKS[each.check].looks_at, each.looked] for each in audit.outcomes]
    found = [
        {
            "title": f"{finding.severity}: {_name(each)}",
            "text": finding.text,
            "examples": finding.examples,
            "advice": finding.advice or CHECKS[each.check].advice,
            "is_leak": finding.severity == "leak",
        }
        for each in audit.outcomes
        for finding in each.findings
    ]
    return render(
        "audit.html.j2",
        title=f"Audit of {audit.url}",
        audit=audit,
        found=found,
        rows=rows,
        written=datetime.now(UTC).isoformat(timespec="minutes"),
    )


def _name(each: Outcome) -> str:
    return f"{each.check} ({each.part})" if each.part else each.check


def _state(each: Outcome) -> str:
    return each.severity or ("ok" if each.applies else "does not apply")
