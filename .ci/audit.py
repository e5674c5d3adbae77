"""Known vulnerabilities of what CI installs (constraints.txt), by pip-audit; exits with 1 where there are any.

    python .ci/audit.py               # what the service does not answer for fails nothing: a build must not depend on it
    python .ci/audit.py --strict      # before a release: an audit that checked no package is a failure

Says how many packages of how many the service could check.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

CONSTRAINTS = Path(__file__).resolve().parents[1] / "constraints.txt"


def answers() -> tuple[list[dict[str, Any]], str]:
    """pip-audit's result for each package, or none with the reason."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "audit.json"
        command = [sys.executable, "-m", "pip_audit", "-r", str(CONSTRAINTS), "--no-deps", "--disable-pip"]
        try:
            done = subprocess.run(
                [*command, "-f", "json", "-o", str(out), "--progress-spinner", "off"],
                capture_output=True,
                text=True,
                timeout=300,
            )
        except subprocess.TimeoutExpired:
            return [], "no answer within 300 s"
        if not out.exists():
            return [], (done.stderr.strip().splitlines() or ["no message"])[-1]
        return json.loads(out.read_text())["dependencies"], "the service knows none of them"


def main() -> int:
    entries, reason = answers()
    num_packages = sum("==" in line for line in CONSTRAINTS.read_text().splitlines())
    checked = [entry for entry in entries if "skip_reason" not in entry]
    bad = [entry for entry in checked if entry["vulns"]]
    print(
        f"audit: {len(checked)} of {num_packages} packages checked, {len(bad)} vulnerable{'' if checked else f': {reason}'}"
    )
    for entry in bad:
        for vulnerability in entry["vulns"]:
            fixed = ", ".join(vulnerability["fix_versions"]) or "no version yet"
            print(f"{entry['name']} {entry['version']}: {vulnerability['id']}, fixed in {fixed}")
    return 1 if bad or ("--strict" in sys.argv[1:] and not checked) else 0


if __name__ == "__main__":
    sys.exit(main())
