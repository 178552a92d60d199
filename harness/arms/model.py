"""An arm: what is measured. One tree (or several) plus the environment that runs it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.trees.model import Tree
from harness.vocabulary import Device, Engine

__all__ = ["Arm", "Environment"]


@dataclass(frozen=True, slots=True)
class Environment:
    """A virtual environment with the pinned wheels, shared by all arms of one engine, pin and device."""

    name: str
    device: Device
    prefix: Path
    python: Path
    # Folders with the unpacked runtime wheels of the engines that may come from trees: the environment's own engine, and what
    # an arm combines with it. Their compiled and generated files are linked into trees; they are never on sys.path.
    wheels: Mapping[Engine, Path]
    # Installed distributions, name -> version, as read from the environment itself.
    packages: Mapping[str, str]
    # sha256 over interpreter version, packages and the runtime wheel's hash.
    digest: str


@dataclass(frozen=True, slots=True)
class Arm:
    """One tree of each engine involved, on one environment."""

    name: str
    trees: tuple[Tree, ...]
    environment: Environment
    # Overlay: path in the tree -> sha256 of the file it links to.
    links: Mapping[str, str]
    # Environment variables of every process of this arm (PYTHONPATH, PYTHONSAFEPATH, PYTHONPYCACHEPREFIX, HF_HUB_OFFLINE, ...).
    variables: Mapping[str, str]
    # sha256 over trees (tip, changes), links and environment digest: two arms with equal digests are the same arm.
    digest: str

    def command(self, *arguments: str) -> tuple[str, ...]:
        """The argument vector that runs Python with these arguments in this arm's environment."""
        return (str(self.environment.python), *arguments)
