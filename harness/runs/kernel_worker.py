"""One worker: a process of an arm that measures kernels on request (harness/timing/serving.py is its other end)."""

from __future__ import annotations

import contextlib
import json
import os
import select
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from harness.runs.process import Child
from harness.runs.server import ServerFailure, failure_of
from harness.timing.point import Settings
from harness.vocabulary import Outcome

__all__ = ["Hello", "KernelWorker", "PointResult", "Time"]

_SCRIPT = Path(__file__).resolve().parent.parent / "timing" / "worker.py"
_POLL_S = 0.25


@dataclass(frozen=True, slots=True)
class Hello:
    """What a worker says of itself when it is up: the device and how it times on it."""

    device: str
    mode: str
    memory_bytes: int
    l2_bytes: int
    launch_us: float
    torch: str
    python: str
    # Versions of the engines that the variant needs.
    packages: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Time:
    """The time of one call in µs: median, extremes and samples of `n` replays of `calls` calls."""

    us: float
    min: float
    max: float
    n: int
    calls: int
    samples: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class PointResult:
    """One point: times by state ("cold", "warm", "host"), or why there are none."""

    point: str
    times: Mapping[str, Time] = field(default_factory=dict)
    mode: str = ""
    # Relative error against the reference, by state.
    errors: Mapping[str, float] = field(default_factory=dict)
    moved: int = 0
    sets: int = 0
    # Kernels of one replay, by state: name -> how often.
    kernels: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    # The same by CUPTI, where it is there, with the time in which any of them ran, in µs a call.
    cupti: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    # Guards by the name in harness.vocabulary.Guard: what made them fire, or why they could not be read.
    fired: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    absent: Mapping[str, str] = field(default_factory=dict)
    # The variant does not cover the point, because of this.
    skipped: str = ""
    outcome: Outcome = Outcome.OK
    detail: str = ""


class KernelWorker:
    """`command` gives the argument vector that runs the arm's Python; `file` is a workload or peer file, `kernels` ours."""

    def __init__(
        self,
        command: Callable[..., Sequence[str]],
        *,
        environment: Mapping[str, str],
        directory: Path,
        file: Path,
        device: str,
        variant: str | None = None,
        kernels: Path | None = None,
        name: str = "worker",
    ) -> None:
        """Starts it and returns at once; `poll_ready` or `wait_ready` is next. Raises RunError when it cannot be started."""
        arguments = {"device": device, "file": str(file)}
        if variant is not None:
            arguments["variant"] = variant
        if kernels is not None:
            arguments["kernels"] = str(kernels)
        their_requests, self._requests = os.pipe()
        self._replies, their_replies = os.pipe()
        self._buffer = b""
        self._start = time.monotonic()
        self.name = name
        self.hello: Hello | None = None
        self.log = directory / f"{name}.log"
        try:
            self._child = Child(
                command(str(_SCRIPT), str(their_requests), str(their_replies), json.dumps(arguments)),
                environment=environment,
                directory=directory,
                log=self.log,
                keep_open=(their_requests, their_replies),
            )
        except BaseException:
            self._close()
            raise
        finally:
            os.close(their_requests)
            os.close(their_replies)

    def poll_ready(self, timeout_s: float) -> bool:
        """Whether it is up. Raises ServerFailure, with the worker stopped, when it has ended or its time is over."""
        answer = self._reply(0.0)
        if answer is not None:
            self.hello = Hello(**{key: value for key, value in answer.items() if key != "ready"})
            return True
        if time.monotonic() - self._start > timeout_s:
            raise self._late("starting", timeout_s)
        self._check("while it started")
        return False

    def wait_ready(self, timeout_s: float) -> Hello:
        """Wait until it is up. Raises ServerFailure."""
        while not self.poll_ready(timeout_s):
            time.sleep(_POLL_S / 5)
        if self.hello is None:
            raise AssertionError("a worker that is ready has said hello")
        return self.hello

    def measure(
        self, settings: Settings, *, points: Sequence[str] = (), keep_bytes: int, timeout_s: float
    ) -> Iterator[PointResult]:
        """Measure the points (none named: all), giving each as it is done.

        `keep_bytes` is how much the worker may hold between two requests, so that it need not make its inputs again. Raises
        ServerFailure, with the worker stopped, when it dies or is not done in time.
        """
        request = {
            "do": "measure",
            "points": list(points),
            "settings": asdict(settings),
            "keep_bytes": keep_bytes,
        }
        deadline = time.monotonic() + timeout_s
        try:
            os.write(self._requests, (json.dumps(request) + "\n").encode())
            while True:
                answer = self._reply(_POLL_S)
                if answer is None:
                    self._check("during a run")
                    if time.monotonic() > deadline:
                        raise self._late("a run", timeout_s)
                elif "done" in answer:
                    return
                else:
                    yield _result(answer)
        except BrokenPipeError as error:
            self._check("during a run", certainly=True)
            raise AssertionError("a pipe breaks when its reader ends") from error
        except (KeyboardInterrupt, ServerFailure):
            self.stop()
            raise

    def _check(self, when: str, *, certainly: bool = False) -> None:
        if self._child.running() and not certainly:
            return
        end = self._child.wait(_POLL_S)
        self.stop()
        if end is None:
            raise AssertionError("wait without a condition returns an end")
        raise failure_of(end, f"the {self.name}", when)

    def _late(self, what: str, timeout_s: float) -> ServerFailure:
        self.stop()
        return ServerFailure(
            Outcome.TIMED_OUT, f"the {self.name} was stopped: {what} took more than {timeout_s:.0f} s", self.log
        )

    def _reply(self, timeout_s: float) -> dict[str, Any] | None:
        """The worker's next line, or None when there is none within the time."""
        if b"\n" not in self._buffer and select.select([self._replies], [], [], timeout_s)[0]:
            self._buffer += os.read(self._replies, 1 << 20)
        line, end, rest = self._buffer.partition(b"\n")
        if not end:
            return None
        self._buffer = rest
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _close(self) -> None:
        for descriptor in (self._requests, self._replies):
            if descriptor >= 0:
                with contextlib.suppress(OSError):
                    os.close(descriptor)
        self._requests = self._replies = -1

    def stop(self) -> None:
        """Stop it with what it started. Safe to call twice."""
        self._child.stop()
        self._close()


def _result(answer: Mapping[str, Any]) -> PointResult:
    if "failed" in answer:
        failed = answer["failed"]
        return PointResult(failed["point"], outcome=Outcome(failed["outcome"]), detail=failed["detail"])
    if "skipped" in answer:
        return PointResult(answer["skipped"]["point"], skipped=answer["skipped"]["reason"])
    found = answer["result"]
    return PointResult(
        point=found["point"],
        times={state: Time(**{**one, "samples": tuple(one["samples"])}) for state, one in found["times"].items()},
        mode=found["mode"],
        errors=found["errors"],
        moved=found["bytes"],
        sets=found["sets"],
        kernels=found.get("kernels", {}),
        cupti=found.get("cupti", {}),
        fired={guard: tuple(details) for guard, details in found["fired"].items()},
        absent=found["absent"],
    )
