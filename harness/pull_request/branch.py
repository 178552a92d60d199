"""The branch that a person pushes: the series on the head pin, in their own name and with their own sign-off."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.errors import PullRequestError
from harness.git import GitCommandError, git
from harness.series.apply import build_tip
from harness.trees.repository import resolve

__all__ = ["Identity", "make_branch", "submitter"]

# What git and hosts put in when nobody has said who they are.
NOBODY = re.compile(r"(^|@)(localhost|.*\.local|.*\.\(none\)|example\.(org|com))$|^upkernel", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Identity:
    name: str
    email: str

    def __str__(self) -> str:
        return f"{self.name} <{self.email}>"


def submitter(where: Path) -> Identity:
    """Who git says the person is, in that folder. Raises PullRequestError when it does not know, or knows nobody real."""
    name, email = (_setting(where, key) for key in ("user.name", "user.email"))
    if not name or not email or NOBODY.search(email) or name.lower() == "upkernel":
        said = f"git knows {name or 'no name'} <{email or 'no address'}>"
        raise PullRequestError(
            f"a branch for a pull request carries your name and your sign-off, and {said}. Set yours: "
            "`git config --global user.name 'Your Name'` and `git config --global user.email you@your.domain`"
        )
    return Identity(name, email)


def make_branch(repository: Path, branch: str, base: str, patches: Sequence[Path], who: Identity) -> str:
    """Make a branch of that name at `base` with the patches as commits of `who`, signed off. Returns its tip.

    No worktree is touched. Raises PullRequestError when the name is taken or is none, SeriesError when a patch does not apply.
    """
    try:
        git(repository, "check-ref-format", "--branch", branch)
    except GitCommandError as error:
        raise PullRequestError(f"{branch!r} cannot be the name of a branch") from error
    if resolve(repository, f"refs/heads/{branch}"):
        raise PullRequestError(f"{repository} has a branch {branch} already; take another name, or delete it")
    tip = build_tip(repository, base, patches)
    commits = git(repository, "rev-list", "--reverse", f"{base}..{tip}").stdout.split()
    signed = base
    for commit in commits:
        signed = _signed(repository, commit, signed, who)
    git(repository, "update-ref", f"refs/heads/{branch}", signed, "0" * 40)
    return signed


def _signed(repository: Path, commit: str, parent: str, who: Identity) -> str:
    message = git(repository, "show", "--no-patch", "--format=%B", commit).stdout.strip() + "\n"
    trailer = ("--if-exists=addIfDifferent", "--trailer", f"Signed-off-by: {who}")
    message = git(repository, "interpret-trailers", *trailer, stdin=message.encode("utf-8", "surrogateescape")).stdout + "\n"
    env = {
        "GIT_AUTHOR_NAME": who.name,
        "GIT_AUTHOR_EMAIL": who.email,
        "GIT_COMMITTER_NAME": who.name,
        "GIT_COMMITTER_EMAIL": who.email,
    }
    made = ("commit-tree", f"{commit}^{{tree}}", "-p", parent, "-F", "-")
    return git(repository, *made, env=env, stdin=message.encode("utf-8", "surrogateescape")).stdout


def _setting(where: Path, key: str) -> str:
    try:
        return git(where, "config", "--get", key, user_config=True).stdout.strip()
    except GitCommandError as error:
        if error.status != 1:  # 1: it is not set
            raise
        return ""
