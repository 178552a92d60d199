"""Where things are: what is in the repository, and the state folder that the harness fills."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Paths"]

STATE_VARIABLE = "UPKERNEL_STATE"


@dataclass(frozen=True, slots=True)
class Paths:
    """The checkout (`root`) and the folder for everything that can be made again (`state`)."""

    root: Path
    state: Path

    @classmethod
    def of(cls, root: Path | None = None, state: Path | None = None) -> Paths:
        """The checkout that this file is in, with its state in upstream/state unless UPKERNEL_STATE names another folder."""
        root = (root or Path(__file__).resolve().parent.parent).resolve()
        if state is None:
            named = os.environ.get(STATE_VARIABLE)
            state = Path(named).expanduser() if named else root / "upstream" / "state"
        return cls(root=root, state=state.resolve())

    # in the repository
    @property
    def pins_file(self) -> Path:
        return self.root / "upstream" / "pins.toml"

    @property
    def lock_file(self) -> Path:
        return self.root / "upstream" / "lock.toml"

    @property
    def requirements(self) -> Path:
        """Locked dependency lists of the bench environments."""
        return self.root / "upstream" / "requirements"

    @property
    def patches(self) -> Path:
        return self.root / "patches"

    @property
    def workloads(self) -> Path:
        return self.root / "workloads"

    # in the state folder
    @property
    def archives(self) -> Path:
        return self.state / "archives"

    @property
    def repositories(self) -> Path:
        """One bare repository per engine: repositories/vllm.git."""
        return self.state / "repositories"

    @property
    def trees(self) -> Path:
        """Worktrees, named by tip commit: trees/vllm/0123456789ab."""
        return self.state / "trees"

    @property
    def environments(self) -> Path:
        """Virtual environments, one per engine pin and device: environments/vllm-0.24.0-cpu-py311."""
        return self.state / "environments"

    @property
    def arms(self) -> Path:
        return self.state / "arms"

    @property
    def models(self) -> Path:
        return self.state / "models"

    @property
    def experiments(self) -> Path:
        return self.state / "experiments"

    @property
    def calibration(self) -> Path:
        return self.state / "calibration"
