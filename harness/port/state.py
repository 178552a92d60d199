"""A port that was begun: where it stands, kept in the git directory of its work tree so that it goes when that goes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from harness.errors import PortError
from harness.files import write_atomically
from harness.git import git
from harness.paths import Paths
from harness.series.model import Series
from harness.trees.worktrees import WORK
from harness.vocabulary import Source

__all__ = ["PortState", "digest", "port_tree", "read_state", "write_state"]

FILE = "upkernel-port.json"
SCHEMA = 1


@dataclass(frozen=True, slots=True)
class PortState:
    """`next` is the patch that is being carried, or carried next; `waiting` while it waits for a person.

    `base` is the pin's commit, `below` the one that the series' own patches start on, `old` what they were made for, patches
    applied. `patches` are the names of the files, and `sources` the digest of what they were when the port began.
    """

    series: str
    pin: str
    source: Source
    base: str
    below: str
    old_below: str
    old: str
    patches: tuple[str, ...]
    sources: str
    # HEAD before the patch at `next`.
    head: str
    next: int = 0
    waiting: bool = False
    # Patches that made no commit: the other pin has them in whole, or a person skipped them.
    left_out: tuple[str, ...] = ()
    # Files that the patches change and that are gone: (old name, new name or None).
    moves: tuple[tuple[str, str | None], ...] = ()

    def advanced(self, head: str) -> PortState:
        """With the patch at `next` done, and `head` the commit that the tree is at now."""
        left_out = self.left_out if head != self.head else (*self.left_out, self.patches[self.next])
        return replace(self, next=self.next + 1, waiting=False, head=head, left_out=left_out)


def port_tree(paths: Paths, series: Series, pin: str) -> Path:
    """The folder that a port is made in; apart from the series' own work tree, so that both can be open."""
    return paths.trees / series.engine / f"{WORK}{series.name}-to-{pin}"


def digest(patches: Sequence[Path]) -> str:
    """Changes when a patch file is changed, added or dropped."""
    total = hashlib.sha256()
    for patch in patches:
        total.update(hashlib.sha256(patch.name.encode() + b"\0" + patch.read_bytes()).digest())
    return total.hexdigest()


def read_state(tree: Path) -> PortState:
    """Raises PortError when the folder is not a port that was begun."""
    file = _file(tree)
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
        if data.pop("schema") != SCHEMA:
            raise PortError(f"the port in {tree} was begun by another version of this checkout: give it up with --abort")
        data |= {"source": Source(data["source"]), "moves": tuple((old, new) for old, new in data["moves"])}
        data |= {name: tuple(data[name]) for name in ("patches", "left_out")}
        return PortState(**data)
    except FileNotFoundError as error:
        raise PortError(f"{tree} is not a port that was begun by this command: delete the folder, then start again") from error
    except (ValueError, TypeError, KeyError) as error:
        raise PortError(f"{file} cannot be read ({error}): give the port up with --abort") from error


def write_state(tree: Path, state: PortState) -> None:
    """Whole or not at all."""
    write_atomically(_file(tree), json.dumps({"schema": SCHEMA, **asdict(state)}, indent=2) + "\n", PortError)


def _file(tree: Path) -> Path:
    return Path(tree, git(tree, "rev-parse", "--git-path", FILE).stdout)
