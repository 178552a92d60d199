"""Run git hermetically: the user's configuration and environment change neither a commit, nor a patch, nor a tree."""

from __future__ import annotations

import functools
import os
import re
import subprocess
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, cast

from harness.errors import TreeError

if TYPE_CHECKING:
    from git.cmd import Git

__all__ = [
    "EMAIL",
    "GIT_NEEDED",
    "NAME",
    "GitCommandError",
    "GitResult",
    "git",
    "git_bytes",
    "git_feed",
    "git_remedy",
    "git_version",
    "require_git",
]

GIT_NEEDED = (2, 38)
VERSION_TIMEOUT = 10.0  # seconds

# Committer (and default author) of every commit the harness makes; fixed, so that every machine makes the same commits.
NAME = "upkernel"
EMAIL = "upkernel@localhost"

# Given as -c, because a repository's own config file may be the user's.
SETTINGS = (
    "core.hooksPath=/dev/null",
    "core.autocrlf=false",
    "core.eol=lf",
    "core.fsmonitor=false",
    "core.quotePath=true",
    "commit.gpgSign=false",
    "tag.gpgSign=false",
    "i18n.commitEncoding=UTF-8",
    "i18n.logOutputEncoding=UTF-8",
    "advice.detachedHead=false",
    "color.ui=false",
    "gc.auto=0",  # a background gc would race with the next command
    "maintenance.auto=false",
    "protocol.version=2",
)

# Where the user's configuration counts (their own checkouts, servers), their ignore rules and their trust count too.
HERMETIC = ("core.attributesFile=/dev/null", "core.excludesFile=/dev/null", "safe.directory=*")

# How to reach a server is the user's business; everything else that starts with GIT_ is not passed on.
KEPT = frozenset({"GIT_SSH", "GIT_SSH_COMMAND", "GIT_SSH_VARIANT", "GIT_SSL_CAINFO", "GIT_SSL_CAPATH", "GIT_SSL_NO_VERIFY"})


@dataclass(frozen=True, slots=True)
class GitResult:
    """Output of a git command that succeeded, without the last newline; bytes that are not UTF-8 are surrogate escapes."""

    stdout: str
    stderr: str


class GitCommandError(TreeError):
    """A git command failed. `status`, `stdout` and `stderr` are git's, for callers that tell failures apart."""

    def __init__(self, command: str, where: Path, status: int, stdout: str, stderr: str) -> None:
        said = (stderr.strip() or stdout.strip() or "(git printed nothing)").replace("\n", "\n  ")
        super().__init__(f"`{command}` in {where} failed with status {status}:\n  {said}")
        self.status = status
        self.stdout = stdout
        self.stderr = stderr


def git(
    where: Path,
    *arguments: str,
    env: Mapping[str, str] | None = None,
    stdin: bytes | Path | None = None,
    timeout: float | None = None,
    user_config: bool = False,
) -> GitResult:
    """Run one git command in a repository or worktree.

    `stdin` is the input's bytes or a file that holds them. `timeout` is in seconds; the command is killed when it is over,
    so give one only to commands that a kill cannot harm. `user_config` lets the user's own configuration in (proxy,
    credentials, `url.*.insteadOf`, `safe.directory`): for talking to servers and reading the user's own checkouts.

    Raises GitCommandError (a TreeError) with the command and what git said.
    """
    stdout, stderr = _run(where, arguments, env=env, stdin=stdin, timeout=timeout, user_config=user_config)
    return GitResult(stdout=stdout.decode("utf-8", "surrogateescape").removesuffix("\n"), stderr=stderr)


def git_bytes(
    where: Path,
    *arguments: str,
    env: Mapping[str, str] | None = None,
    stdin: bytes | Path | None = None,
    user_config: bool = False,
) -> bytes:
    """Like `git`, for output that is content (a patch, a blob, NUL-separated names): every byte as git wrote it."""
    return _run(where, arguments, env=env, stdin=stdin, timeout=None, user_config=user_config)[0]


def git_feed(where: Path, *arguments: str, chunks: Iterable[bytes]) -> None:
    """Run one git command that reads a long input (fast-import), piece by piece.

    When `chunks` raises, the command is ended and the exception goes on; with `--done` fast-import then keeps nothing.
    """
    command, variables = _command(where, arguments, env=None, user_config=False)
    process = _program(where).execute(command, istream=subprocess.PIPE, env=variables, as_process=True)
    finished = False
    try:
        for chunk in chunks:
            process.stdin.write(chunk)
        finished = True
    except BrokenPipeError:
        finished = True  # git ended first; its status and words say why
    finally:
        if not finished:
            process.terminate()
        _, stderr = process.communicate()
    if process.returncode != 0:
        raise GitCommandError("git " + " ".join(arguments), where, process.returncode, "", stderr.decode("utf-8", "replace"))


def git_remedy() -> str:
    """What to do where git is missing or too old."""
    return f"install git {_dotted(GIT_NEEDED)} or newer (Debian, Ubuntu: apt install git)"


def git_version(said: str) -> tuple[str, bool]:
    """The version in what `git --version` printed, and whether it is new enough."""
    match = re.search(r"(\d+)\.(\d+)\S*", said)
    return (match[0], (int(match[1]), int(match[2])) >= GIT_NEEDED) if match else (said, False)


@functools.cache
def require_git() -> None:
    """Raises TreeError where git is missing or too old; looked at once in a process, before its first git command."""
    try:
        result = subprocess.run(
            ["git", "--version"], capture_output=True, text=True, check=True, timeout=VERSION_TIMEOUT, stdin=subprocess.DEVNULL
        )
    except FileNotFoundError as error:
        raise TreeError(f"git is not on the PATH: {git_remedy()}") from error
    except (OSError, subprocess.SubprocessError) as error:
        raise TreeError(f"git cannot be run ({error}): {git_remedy()}") from error
    version, enough = git_version(result.stdout.strip())
    if not enough:
        raise TreeError(f"git {version} is too old: {git_remedy()}")


def _dotted(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))


def _program(where: Path) -> Git:
    """GitPython in a folder. It refuses to be imported where there is no git, so commands that need none must not import it."""
    require_git()
    from git.cmd import Git  # noqa: PLC0415

    return Git(where)


def _run(
    where: Path,
    arguments: tuple[str, ...],
    *,
    env: Mapping[str, str] | None,
    stdin: bytes | Path | None,
    timeout: float | None,
    user_config: bool,
) -> tuple[bytes, str]:
    command, variables = _command(where, arguments, env=env, user_config=user_config)
    with tempfile.TemporaryFile() as given:
        source: BinaryIO | None = None
        if isinstance(stdin, bytes):
            given.write(stdin)
            given.seek(0)
            source = cast("BinaryIO", given)
        elif stdin is not None:
            source = stdin.open("rb")
        try:
            status, stdout, stderr = _program(where).execute(
                command,
                istream=source,
                env=variables,
                with_extended_output=True,
                with_exceptions=False,
                stdout_as_string=False,
                strip_newline_in_stdout=False,
                kill_after_timeout=timeout,
            )
        finally:
            if source is not None:
                source.close()
    if status != 0:
        raise GitCommandError("git " + " ".join(arguments), where, status, stdout.decode("utf-8", "replace"), stderr)
    return stdout, stderr


def _command(
    where: Path, arguments: tuple[str, ...], *, env: Mapping[str, str] | None, user_config: bool
) -> tuple[list[str], dict[str, str]]:
    """The argument vector, and what it adds to the environment."""
    if not where.is_dir():
        raise TreeError(f"git cannot run in {where}: there is no such folder")
    variables = _variables(user_config=user_config) | dict(env or {})
    settings = SETTINGS if user_config else (*SETTINGS, *HERMETIC)
    return [*_without(variables), "git", *(word for setting in settings for word in ("-c", setting)), *arguments], variables


def _variables(*, user_config: bool) -> dict[str, str]:
    variables = {
        "LC_ALL": "C",
        "TZ": "UTC",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": "/dev/null",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_ASKPASS": "true",  # a program that answers nothing: a server that wants a password is a failure, not a wait
        "SSH_ASKPASS": "true",
        "GIT_EDITOR": "true",
        "GIT_PAGER": "cat",
        "GIT_AUTHOR_NAME": NAME,
        "GIT_AUTHOR_EMAIL": EMAIL,
        "GIT_COMMITTER_NAME": NAME,
        "GIT_COMMITTER_EMAIL": EMAIL,
    }
    if user_config:
        del variables["GIT_CONFIG_NOSYSTEM"], variables["GIT_CONFIG_GLOBAL"]
    return variables


def _without(variables: Mapping[str, str]) -> list[str]:
    """Words before `git` that remove GIT_DIR and its like: GitPython adds to the environment, never removes."""
    unwanted = sorted(name for name in os.environ if name.startswith("GIT_") and name not in KEPT and name not in variables)
    return ["env", *(word for name in unwanted for word in ("-u", name))] if unwanted else []
