"""A git directory of our own that borrows another repository's objects.

Settings can be overridden one by one, but the list of those that change a commit or a patch grows with every git release,
and a repository has more than settings: info/attributes, hooks, replaced objects, grafts. Here nothing of that exists. What
is made (commits, trees, blobs) is written straight to the borrowed object store, so that the caller's repository has it.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from harness.git import GitResult, git, git_bytes

__all__ = ["Isolated", "isolated"]

# The .gitattributes of the engines must not convert what is checked out nor hide a file from a diff. The repositories of
# harness.trees say the same.
ATTRIBUTES = "* -text -ident !eol !filter !working-tree-encoding !diff !merge\n"


@dataclass(frozen=True, slots=True)
class Isolated:
    """An empty work tree (`path`) whose git directory has no settings, on objects of another repository."""

    path: Path
    environment: dict[str, str]

    def git(self, *arguments: str, env: dict[str, str] | None = None, stdin: bytes | Path | None = None) -> GitResult:
        """Run git here; raises GitCommandError (a TreeError)."""
        return git(self.path, *arguments, env=self.environment | (env or {}), stdin=stdin)

    def git_bytes(self, *arguments: str, stdin: bytes | Path | None = None) -> bytes:
        """Like `git`, for output that is content."""
        return git_bytes(self.path, *arguments, env=self.environment, stdin=stdin)


@contextmanager
def isolated(repository: Path) -> Iterator[Isolated]:
    """Borrow the objects of a repository (bare, a worktree or a clone); raises TreeError when it is none."""
    places = git(repository, "rev-parse", "--git-path", "objects", "--git-path", "shallow").stdout.splitlines()
    objects, shallow = (Path(repository, place).resolve() for place in places)
    with tempfile.TemporaryDirectory(prefix="upkernel-series-", ignore_cleanup_errors=True) as folder:
        path = Path(folder)
        here = Isolated(path, {"GIT_OBJECT_DIRECTORY": str(objects), "GIT_ATTR_NOSYSTEM": "1", "GIT_LITERAL_PATHSPECS": "1"})
        # an empty template: the user's could bring hooks and settings
        here.git("init", "--quiet", "--template=")
        if shallow.is_file():
            shutil.copy(shallow, path / ".git" / "shallow")
        (path / ".git" / "info").mkdir(exist_ok=True)
        (path / ".git" / "info" / "attributes").write_text(ATTRIBUTES, encoding="ascii")
        yield here
