"""``make release VERSION=1.2.3``: write the version, check everything, build, commit and tag.

Nothing leaves the machine: it ends with the commands that publish what it made.
"""

from __future__ import annotations

import datetime
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
ADDRESS = (
    "README.md: replace URL by the address of the repository; likewise in docs/quickstart.md and "
    "docs/notebooks/index.md, and add it to pyproject.toml ([project.urls]) and CITATION.cff"
)
# The one place of the version, and what surrounds it.
PACKAGE, VERSION = "src/tricouple/__init__.py", r'(?m)^(__version__ = ")(.*)(")$'


def prepare(root: Path, version: str, date: str) -> None:
    """Write a version where it stands; "Unreleased" becomes its part of the changelog.

    Raises:
        SystemExit: If it is no version, not a later one, or nothing has changed since the last.
    """
    source = (root / PACKAGE).read_text()
    now = re.search(VERSION, source)[2]
    if not re.fullmatch(r"\d+\.\d+\.\d+", version):
        raise SystemExit(f"VERSION={version}: expected three numbers, such as 0.2.0")
    log = root / "CHANGELOG.md"
    head, title, rest = log.read_text().partition("## [Unreleased]\n")
    news, _, before = rest.partition("\n## [")
    released = f"## [{now}]" in rest
    if numbers(version) < numbers(now) or (version == now and released):
        raise SystemExit(f"VERSION={version}: the last one is {now}")
    if not news.strip():
        raise SystemExit("CHANGELOG.md says nothing under Unreleased: nothing to release")
    (root / PACKAGE).write_text(re.sub(VERSION, rf"\g<1>{version}\g<3>", source, count=1))
    older = f"\n## [{before}" if before else ""
    log.write_text(f"{head}{title}\n## [{version}] - {date}\n\n{news.strip()}\n{older}")


def numbers(version: str) -> list[int]:
    """A version that can be compared."""
    return [int(part) for part in version.split(".")]


def call(*command: str) -> str:
    """Run a command in the repository; what it printed, if it is from git."""
    quiet = subprocess.PIPE if command[0] == "git" else None
    done = subprocess.run(command, cwd=ROOT, check=True, text=True, stdout=quiet)
    return done.stdout or ""


def main(version: str) -> None:
    """All steps; what fails leaves no commit and no tag."""
    if call("git", "status", "--porcelain"):
        raise SystemExit("commit your changes first: a release is made of a commit")
    if "git clone URL" in (ROOT / "README.md").read_text():
        raise SystemExit(ADDRESS)
    prepare(ROOT, version, datetime.date.today().isoformat())
    try:
        call("make", "lint", "test", "docs", "wheels")
    except BaseException:
        call("git", "checkout", "--", ".")
        raise
    call("git", "commit", "--all", "--message", f"Version {version}")
    call("git", "tag", "--annotate", f"v{version}", "--message", f"Version {version}")
    # A package index takes no wheel that is tagged linux_x86_64, only manylinux.
    print(f"To publish: git push --follow-tags && twine upload dist/tricouple-{version}.tar.gz")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "")
