"""Refuse words that do not belong into the repository.

Paths of one machine, addresses that nobody agreed on (a pin must work with any index of packages), and marks of
unfinished work. It looks at every file that git tracks or would add, as bytes, so that nothing hides in an odd
encoding.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# The first folder of every absolute path in the repository: of any machine, or made up in an example.
FOLDERS = rb"db|dev|etc|fd|fdinfo|home|host|items|lock|no|nowhere|out|path|perdure|proc|reports|sbin|tmp|usr"
# Every host that the repository names.
HOSTS = rb"(?:[\w-]+\.)*example\.org|keepachangelog\.com|semver\.org"

# Written in pieces, so that this file does not refuse itself.
FORBIDDEN: tuple[tuple[re.Pattern[bytes], str], ...] = (
    (
        re.compile(rb"(?<![\w.~-])/(?!(?:" + FOLDERS + rb")/)[a-z]+/"),
        "in a folder that is not listed here",
    ),
    (re.compile(rb"\b(?:TO" rb"DO|FIX" rb"ME|XX" rb"X)\b"), "a mark of unfinished work: finish it or open an issue"),
    (re.compile(rb"\braise NotImplemented" rb"Error\b"), "unfinished work: leave the function out until it exists"),
    (
        re.compile(rb"(?<![\w.-])(?!(?:" + HOSTS + rb")(?![\w.-]))(?:[\w-]+\.)+(?:com|io|net|org)\b"),
        "a host that is not listed here",
    ),
    (re.compile(rb"--(?:extra-)?index-" rb"url|--find-" rb"links"), "an index in a file: pins must work with any"),
)


def main() -> int:
    """Print each place with its reason; the exit status is 1 if there is one."""
    complaints = [
        f"{path.as_posix()}:{line}: {word!r} is {reason}"
        for path in repository_files(ROOT)
        for line, word, reason in forbidden_words((ROOT / path).read_bytes())
    ]
    for complaint in complaints:
        print(complaint)
    return 1 if complaints else 0


def repository_files(root: Path) -> Iterator[Path]:
    """The files of the repository, relative to its root; without git, all but caches and environments."""
    if (root / ".git").exists():
        command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        listing = subprocess.run(command, cwd=root, check=True, capture_output=True).stdout
        paths = [Path(name) for name in listing.decode("utf-8", "surrogateescape").split("\0") if name]
    else:
        paths = [path.relative_to(root) for path in root.rglob("*")]
        paths = [
            path for path in paths if not any(part.startswith(".") or part == "__pycache__" for part in path.parts)
        ]
    # A tracked file may have just been deleted, and a link may lead out of the tree.
    yield from sorted(path for path in paths if (root / path).is_file() and not (root / path).is_symlink())


def forbidden_words(content: bytes) -> Iterator[tuple[int, str, str]]:
    """Line, word and reason of everything in a file that does not belong."""
    for pattern, reason in FORBIDDEN:
        for found in pattern.finditer(content):
            yield content.count(b"\n", 0, found.start()) + 1, found[0].decode("utf-8", "replace"), reason


if __name__ == "__main__":
    sys.exit(main())
