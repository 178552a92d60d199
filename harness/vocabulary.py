"""The words that all parts share (README, "Words"), each defined once and as an enum, never a bool or a bare string."""

from __future__ import annotations

from enum import IntEnum, StrEnum

__all__ = [
    "CacheState",
    "Device",
    "Direction",
    "DriftState",
    "Engine",
    "ExitCode",
    "Guard",
    "GuardState",
    "Mode",
    "Outcome",
    "Phase",
    "PinRole",
    "ScreenSign",
    "SeriesStatus",
    "Slot",
    "Source",
    "Tier",
    "TimingMode",
    "TreeOrigin",
    "Verdict",
    "WorkloadKind",
]


class Engine(StrEnum):
    """An inference engine (or kernel library) that upkernel sends patches to."""

    VLLM = "vllm"
    SGLANG = "sglang"
    FLASHINFER = "flashinfer"


class PinRole(StrEnum):
    """Why a release is pinned: to be measured, to be the target of a pull request, or added by a user."""

    BENCH = "bench"
    HEAD = "head"
    EXTRA = "extra"


class Source(StrEnum):
    """Where a tree's base commit came from. Commits differ between the two, patches do not."""

    GIT = "git"
    ARCHIVE = "archive"


class TreeOrigin(StrEnum):
    """What a tree's tip is: the pin itself, a series on it, or a ref or checkout of the user's own."""

    BASE = "base"
    SERIES = "series"
    REF = "ref"
    PATH = "path"


class Device(StrEnum):
    """The kind of device an environment runs on."""

    CPU = "cpu"
    CUDA = "cuda"


class WorkloadKind(StrEnum):
    """engine: one of an engine's own benchmark scripts. kernel: calls of one kernel at many shapes."""

    ENGINE = "engine"
    KERNEL = "kernel"


class TimingMode(StrEnum):
    """How a kernel was timed: spans that CUPTI records, replays of a CUDA graph, CUDA events, or the host's clock."""

    CUPTI = "cupti"
    GRAPH = "graph"
    EVENTS = "events"
    WALL = "wall"


class CacheState(StrEnum):
    """cold: inputs rotate past the L2 cache. warm: one set of inputs, which may stay in it."""

    COLD = "cold"
    WARM = "warm"


class Phase(StrEnum):
    """What an engine was doing when a kernel ran."""

    PREFILL = "prefill"
    DECODE = "decode"
    OTHER = "other"
    UNATTRIBUTED = "unattributed"


class Slot(StrEnum):
    """The part an arm plays in an experiment. The control is a second base arm, for the A/A comparison."""

    BASE = "base"
    PATCHED = "patched"
    CONTROL = "control"


class Mode(StrEnum):
    """process: fresh processes for each pair. live: both arms stay up for a generation."""

    PROCESS = "process"
    LIVE = "live"


class Tier(StrEnum):
    """screen: minutes, never a verdict. confirm: enough generations for one."""

    SCREEN = "screen"
    CONFIRM = "confirm"


class Outcome(StrEnum):
    """How one run ended. Everything but OK is kept with its log; nothing becomes 0 and nothing is dropped."""

    OK = "ok"
    CRASHED = "crashed"
    TIMED_OUT = "timed-out"
    OUT_OF_MEMORY = "out-of-memory"
    NO_RESULT = "no-result"
    BAD_RESULT = "bad-result"
    INTERRUPTED = "interrupted"


class Guard(StrEnum):
    """A condition that is recorded with each run and can void it."""

    LOAD = "load"
    MODULES = "modules"
    TOKENS = "tokens"
    PREFIX_CACHE = "prefix cache"
    ERRORS = "errors"
    MEMORY = "memory"
    COMPILATION = "compilation"
    # What a run generated; it never voids, but the runs of a pair are compared by it.
    OUTPUTS = "outputs"
    # Of a GPU, read through NVML and never changed.
    CLOCKS = "clocks"
    THROTTLE = "throttle"
    TEMPERATURE = "temperature"
    POWER = "power"
    PROCESSES = "processes"
    ECC = "ecc"
    # Of a kernel workload: wrong or missing output, a kernel outside the span, a time below what the hardware allows.
    RESULTS = "results"
    SPAN = "span"
    FLOOR = "floor"


class GuardState(StrEnum):
    """passed, fired (the run is void), or absent (this machine cannot read it; reported, never assumed)."""

    PASSED = "passed"
    FIRED = "fired"
    ABSENT = "absent"


class Direction(StrEnum):
    """Which way a metric is better."""

    LOWER = "lower"
    HIGHER = "higher"


class ScreenSign(StrEnum):
    """What a screen may say."""

    WORTH_CONFIRMING = "worth confirming"
    NO_SIGN = "no sign"
    VOID = "void"


class Verdict(StrEnum):
    """What a confirm experiment may say."""

    FASTER = "faster"
    SLOWER = "slower"
    EQUIVALENT = "equivalent"
    INCONCLUSIVE = "inconclusive"
    VOID = "void"


class SeriesStatus(StrEnum):
    """Where a series stands on its way upstream."""

    DRAFT = "draft"
    READY = "ready"
    SUBMITTED = "submitted"
    MERGED = "merged"
    REJECTED = "rejected"
    KNOWN_ANSWER = "known-answer"


class DriftState(StrEnum):
    """What became of a series on another revision: applies (exactly, or 3-way), conflicts, is in it, or lost its target."""

    CLEAN = "clean"
    CLEAN_3WAY = "clean-3way"
    CONFLICT = "conflict"
    LANDED = "landed"
    TARGET_GONE = "target-gone"


class ExitCode(IntEnum):
    """Exit codes of `python -m harness` (nox turns every failure into 1)."""

    OK = 0
    ERROR = 1
    USAGE = 2
    SLOWER = 10
    INCONCLUSIVE = 11
    VOID = 12
