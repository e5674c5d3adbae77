"""Makes every file that pins versions, from pyproject.toml and the installed packages (`make lock`).

    python .ci/lock.py            # constraints.txt from what is installed now, and then the rest from it
    python .ci/lock.py --lists    # only the lists of what a job needs

- `constraints.txt`: every version that CI installs, local build tags removed.
- The lists of what a job needs, in `runtime_env.yaml`: the dependencies but Ray, which a node has. In the `Dockerfile`: Ray too.
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
RUNTIME_ENV, DOCKERFILE = ROOT / "runtime_env.yaml", ROOT / "Dockerfile"
EXTRAS = ("s3",)  # Graphs and runs of a cluster lie on object stores.
IMAGE_EXTRAS = (*EXTRAS, "gs")  # An image is built once for all stores.


def canonical(requirement: str) -> str:
    """The normalised package name (lower case, with dashes) of a requirement or a pin."""
    return re.split(r"[^A-Za-z0-9._-]", requirement)[0].lower().replace("_", "-").replace(".", "-")


def requirements(extras: tuple[str, ...] = EXTRAS) -> list[str]:
    """What a job needs, in the words and the order of pyproject.toml."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    optional = [requirement for extra in extras for requirement in project["optional-dependencies"][extra]]
    return [*project["dependencies"], *optional]


def needed() -> list[str]:
    """Names of the packages that a job needs, in the order of pyproject.toml."""
    return [canonical(requirement) for requirement in requirements()]


def pins() -> dict[str, str]:
    """The pins of constraints.txt by package."""
    return {canonical(line): line for line in CONSTRAINTS.read_text().splitlines() if "==" in line}


def runtime_env(text: str) -> str:
    """The text of runtime_env.yaml with new entries in its list `packages:`. Raises KeyError for a package without a pin."""
    pinned = pins()
    entries = "".join(f"    - {pinned[name]}\n" for name in needed() if name != "ray")
    return _replaced(r"(?<=^  packages:\n)(?: +- .*\n)*", entries, text)


def dockerfile(text: str) -> str:
    """The text of the Dockerfile with new words in its argument PACKAGES, torch first. Raises KeyError for a package without a pin."""
    pinned = pins()
    words = []
    for requirement in requirements(IMAGE_EXTRAS):
        pin, extras = pinned[canonical(requirement)], re.search(r"\[.*\]", requirement)
        words.append(pin.replace("==", f"{extras[0]}==") if extras else pin)
    words.sort(key=lambda word: not word.startswith("torch=="))
    return _replaced(r'(?<=^ARG PACKAGES="\\\n)(?: .*\\\n)*', "".join(f"    {word} \\\n" for word in words), text)


def _replaced(pattern: str, entries: str, text: str) -> str:
    changed, count = re.subn(pattern, lambda _: entries, text, flags=re.MULTILINE)
    if count != 1:
        raise ValueError(f"expected one list, got {count}")
    return changed


# The files with a list, each with the function that makes its text.
LISTS = {RUNTIME_ENV: runtime_env, DOCKERFILE: dockerfile}


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
    for path, with_list in LISTS.items():
        path.write_text(with_list(path.read_text()))
    if not lists_alone:
        write_lock()


if __name__ == "__main__":
    main()
