"""Known vulnerabilities of what CI installs (constraints.txt), by pip-audit; exits with 1 where there are any.

    python .ci/audit.py

What the advisory service does not answer for is counted and said, and fails nothing: a build must not depend on it being up.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

CONSTRAINTS = Path(__file__).resolve().parents[1] / "constraints.txt"


def main() -> int:
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
            print("audit: no answer within 300 s; nothing was audited")
            return 0
        if not out.exists():
            print(f"audit: nothing was audited: {(done.stderr.strip().splitlines() or ['no message'])[-1]}")
            return 0
        found = json.loads(out.read_text())["dependencies"]
    skipped = [entry for entry in found if "skip_reason" in entry]
    bad = [entry for entry in found if entry.get("vulns")]
    print(
        f"audit: {len(found) - len(skipped)} packages audited, {len(skipped)} unknown to the service, {len(bad)} vulnerable"
    )
    for entry in bad:
        for vulnerability in entry["vulns"]:
            fixed = ", ".join(vulnerability["fix_versions"]) or "no version yet"
            print(f"{entry['name']} {entry['version']}: {vulnerability['id']}, fixed in {fixed}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
