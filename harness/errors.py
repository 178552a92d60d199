"""The one exception family. A message says what was wrong, the value, and what to do about it."""

from __future__ import annotations

__all__ = [
    "ArchiveError",
    "ArmError",
    "BundleError",
    "EnvironmentSetupError",
    "EvidenceError",
    "PinError",
    "PlanError",
    "PortError",
    "ProbeError",
    "ProfileError",
    "PullRequestError",
    "RunError",
    "SeriesError",
    "TreeError",
    "UnknownExperimentError",
    "UnknownPinError",
    "UnknownSeriesError",
    "UnknownTreeError",
    "UnknownWorkloadError",
    "UpkernelError",
    "UsageError",
    "WorkloadError",
]


class UpkernelError(Exception):
    """Base of every error that the harness raises on purpose; the command line prints it without a traceback."""

    exit_code = 1


class UsageError(UpkernelError):
    """The command line asks for something that does not exist or does not go together."""

    exit_code = 2


class PinError(UpkernelError):
    """upstream/pins.toml or upstream/lock.toml is wrong, or a release cannot be found on the index."""


class ArchiveError(UpkernelError):
    """An archive has the wrong hash, is truncated, or would write outside its folder."""


class TreeError(UpkernelError):
    """A repository or worktree cannot be made, is in use, or has uncommitted changes."""


class SeriesError(UpkernelError):
    """A series is unknown, malformed, or does not apply."""


class ProbeError(UpkernelError):
    """The machine lacks something that the asked-for work needs."""


class EnvironmentSetupError(UpkernelError):
    """A bench environment could not be installed."""


class ArmError(UpkernelError):
    """Two arms differ in something that is not the series, or an arm's overlay is broken."""


class WorkloadError(UpkernelError):
    """A workload or model description is unknown or malformed."""


class RunError(UpkernelError):
    """A run could not be started at all. (A run that fails is an Outcome, not an exception.)"""


class PlanError(UpkernelError):
    """An experiment's plan is not one that can give an answer."""


class EvidenceError(UpkernelError):
    """Stored samples or evidence cannot be read or written."""


class BundleError(UpkernelError):
    """An offline kit cannot be made, or a part of it is missing, truncated, of another kit or changed."""


class ProfileError(UpkernelError):
    """nsys or ncu is missing or failed, or an export cannot be read."""


class PortError(UpkernelError):
    """A series cannot be carried to another pin, or a port that was begun is not finished."""


class PullRequestError(UpkernelError):
    """Something is missing for a pull request; the message lists all of it."""


# A name that a person typed and that does not exist: a usage error, and still an error of the part that looked for it. The
# message offers the nearest names.


class UnknownPinError(UsageError, PinError):
    """No pin, or no release on the index, has this name."""


class UnknownSeriesError(UsageError, SeriesError):
    """No series has this name."""


class UnknownTreeError(UsageError, TreeError):
    """Neither a folder nor a ref has this name."""


class UnknownWorkloadError(UsageError, WorkloadError):
    """No workload, or no model, has this name."""


class UnknownExperimentError(UsageError, EvidenceError):
    """No stored experiment has this name."""
