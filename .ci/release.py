"""``make release VERSION=1.2.3 [ADDRESS=https://…]``: write both, check all, build, commit, tag.

Nothing leaves the machine: it ends with the commands that publish what it made.
"""

from __future__ import annotations

import datetime
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
UNKNOWN = "git clone URL"  # in the pages that say how to install
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


def publish_at(root: Path, address: str) -> None:
    """Write the public address: into install commands, ``[project.urls]`` and the citation.

    Raises:
        SystemExit: If it is needed and is none.
    """
    pages = [root / "README.md", root / "docs/quickstart.md"]
    missing = [page for page in pages if UNKNOWN in page.read_text()]
    if missing and not re.fullmatch(r"https://[^/\s]+/\S*[^/\s]", address):
        raise SystemExit(
            f"ADDRESS={address}: {missing[0].name} has no address of the repository yet: give it "
            "once, ADDRESS=https://HOST/OWNER/tricouple"
        )
    for page in missing:
        page.write_text(page.read_text().replace(UNKNOWN, f"git clone {address}"))
    if missing:
        project, citation = root / "pyproject.toml", root / "CITATION.cff"
        urls = f'[project.urls]\nRepository = "{address}"\nIssues = "{address}/issues"\n'
        before, scripts, after = project.read_text().partition("[project.scripts]")
        project.write_text(f"{before}{urls}\n{scripts}{after}")
        citation.write_text(f'{citation.read_text()}repository-code: "{address}"\n')


def numbers(version: str) -> list[int]:
    """A version that can be compared."""
    return [int(part) for part in version.split(".")]


def call(*command: str) -> str:
    """Run a command in the repository; what it printed, if it is from git."""
    quiet = subprocess.PIPE if command[0] == "git" else None
    done = subprocess.run(command, cwd=ROOT, check=True, text=True, stdout=quiet)
    return done.stdout or ""


def main(version: str = "", address: str = "") -> None:
    """All steps; what fails leaves no commit and no tag."""
    if call("git", "status", "--porcelain"):
        raise SystemExit("commit your changes first: a release is made of a commit")
    try:
        publish_at(ROOT, address)
        prepare(ROOT, version, datetime.date.today().isoformat())
        call("make", "lint", "test", "docs", "wheels")
    except BaseException:
        call("git", "checkout", "--", ".")
        raise
    call("git", "commit", "--all", "--message", f"Version {version}")
    call("git", "tag", "--annotate", f"v{version}", "--message", f"Version {version}")
    # A package index takes no wheel that is tagged linux_x86_64, only manylinux.
    print(f"To publish: git push --follow-tags && twine upload dist/tricouple-{version}.tar.gz")


if __name__ == "__main__":
    main(*sys.argv[1:])
