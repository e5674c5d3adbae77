"""Makes every file that pins versions, from pyproject.toml and the installed packages (`make lock`).

    python .ci/lock.py            # constraints.txt from what is installed now, and then the rest from it
    python .ci/lock.py --lists    # only the lists of what a job needs

- `constraints.txt`: every version that CI installs, local build tags removed.
- The lists of what a job needs, in `runtime_env.yaml` and KubeRay's manifest: the dependencies but Ray, which a node has.
- `requirements.lock`: the same and Ray, with all that they need and the hashes of each file, for Python 3.11 or newer on any platform.
  It names no index, and an index that serves another build of torch does not match it.
"""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CONSTRAINTS = ROOT / "constraints.txt"
LOCK = ROOT / "requirements.lock"
LISTS = (ROOT / "runtime_env.yaml", ROOT / "docs" / "kuberay-rayjob.yaml")
EXTRAS = ("s3",)  # Graphs and runs of a cluster lie on object stores.


def canonical(requirement: str) -> str:
    """The normalised package name (lower case, with dashes) of a requirement or a pin."""
    return re.split(r"[^A-Za-z0-9._-]", requirement)[0].lower().replace("_", "-").replace(".", "-")


def needed() -> list[str]:
    """Names of the packages that a job needs, in the order of pyproject.toml."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [requirement for extra in EXTRAS for requirement in project["optional-dependencies"][extra]]
    return [canonical(requirement) for requirement in (*project["dependencies"], *extras)]


def pins() -> dict[str, str]:
    """The pins of constraints.txt by package."""
    return {canonical(line): line for line in CONSTRAINTS.read_text().splitlines() if "==" in line}


def with_list(text: str) -> str:
    """The text of a YAML file with new entries in its only list `packages:`. Raises KeyError for a package without a pin."""
    pinned = pins()
    listed = [pinned[name] for name in needed() if name != "ray"]

    def entries(found: re.Match[str]) -> str:
        return found["key"] + "".join(f"{found['indent']}  - {pin}\n" for pin in listed)

    changed, count = re.subn(
        r"(?P<key>^(?P<indent> *)packages:\n)(?:(?P=indent) +- .*\n)*", entries, text, flags=re.MULTILINE
    )
    if count != 1:
        raise ValueError(f"expected one line `packages:`, got {count}")
    return changed


def write_constraints() -> None:
    freeze = [sys.executable, "-m", "pip", "freeze", "--exclude-editable"]
    lines = subprocess.run(freeze, check=True, capture_output=True, text=True).stdout.splitlines()
    kept = sorted((re.sub(r"\+[a-z0-9.]*$", "", line) for line in lines if " @ " not in line), key=str.upper)
    CONSTRAINTS.write_text("\n".join(["# Every version that CI installs; made with `make lock`.", *kept]) + "\n")


def write_lock() -> None:
    """Writes the lock file with hashes from the package index of uv: UV_INDEX_URL, not the settings of pip."""
    words = ["compile", "pyproject.toml", *(f"--extra={extra}" for extra in EXTRAS), "-c", CONSTRAINTS.name]
    made = [
        "--generate-hashes",
        "--universal",
        "--python-version",
        "3.11",
        "--no-header",
        "--no-annotate",
        "--no-emit-index-url",
    ]
    command = [sys.executable, "-m", "uv", "pip", *words, *made, "--quiet", "-o", str(LOCK)]
    subprocess.run(command, check=True, cwd=ROOT)
    LOCK.write_text(
        f"# What a job needs, with hashes; made with `make lock`, tried by `make dist-check`.\n{LOCK.read_text()}"
    )


def main() -> None:
    lists_alone = "--lists" in sys.argv[1:]
    if not lists_alone:
        write_constraints()
    for path in LISTS:
        path.write_text(with_list(path.read_text()))
    if not lists_alone:
        write_lock()


if __name__ == "__main__":
    main()
