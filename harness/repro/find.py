"""Which workloads reproduce a public issue: those whose links name it."""

from __future__ import annotations

import re
from dataclasses import dataclass

from harness.errors import UnknownWorkloadError, UsageError
from harness.paths import Paths
from harness.workloads.kernel_model import KernelWorkload
from harness.workloads.kernel_reader import list_kernel_workloads, read_kernel_workload
from harness.workloads.model import EngineWorkload
from harness.workloads.reader import list_workloads, read_workload

__all__ = ["Thread", "known_threads", "read_any", "thread_of", "workloads_about"]

# GitHub answers .../issues/N and .../pull/N with the same thread, so both name it.
_URL = re.compile(r"^https?://github\.com/([\w.-]+)/([\w.-]+)/(?:issues|pull|discussions)/(\d+)(?:[/?#].*)?$")
_SHORT = re.compile(r"^(?:([\w.-]+)/)?([\w.-]+)(?:#|\s+)(\d+)$")


@dataclass(frozen=True, slots=True)
class Thread:
    """An issue or pull request. `owner` is empty where a person left it out ("vllm#48076")."""

    owner: str
    repository: str
    number: int

    def names(self, other: Thread) -> bool:
        """Whether a link is this thread. GitHub's names do not depend on case."""
        here, there = (self.repository.lower(), self.number), (other.repository.lower(), other.number)
        return here == there and (not self.owner or self.owner.lower() == other.owner.lower())


def thread_of(text: str) -> Thread:
    """An address, "owner/repository#N", "repository#N" or "repository N". Raises UsageError."""
    stripped = text.strip()
    found = _URL.match(stripped) or _SHORT.match(stripped)
    if found is None:
        raise UsageError(
            f"{text!r} is no issue or pull request: give its address, such as "
            "https://github.com/vllm-project/vllm/issues/48076, or vllm#48076"
        )
    owner, repository, number = found.groups()
    return Thread(owner or "", repository, int(number))


def read_any(paths: Paths, name: str) -> EngineWorkload | KernelWorkload:
    """The workload of either kind."""
    return read_kernel_workload(paths, name) if name in list_kernel_workloads(paths) else read_workload(paths, name)


def known_threads(paths: Paths) -> dict[str, tuple[str, ...]]:
    """Workload -> the threads that it names, for all workloads that name one."""
    found: dict[str, tuple[str, ...]] = {}
    for name in sorted((*list_kernel_workloads(paths), *list_workloads(paths))):
        links = tuple(one for one in read_any(paths, name).links if _URL.match(one))
        if links:
            found[name] = links
    return found


def workloads_about(paths: Paths, thread: Thread) -> tuple[str, ...]:
    """Workloads that name the thread, kernel workloads first. Raises UnknownWorkloadError that lists what there is."""
    known = known_threads(paths)
    kernels = set(list_kernel_workloads(paths))
    matching = [name for name, links in known.items() if any(thread.names(thread_of(one)) for one in links)]
    if matching:
        return tuple(sorted(matching, key=lambda name: (name not in kernels, name)))
    listed = "".join(f"\n  {name}: {', '.join(links)}" for name, links in known.items())
    where = f"{thread.owner}/{thread.repository}" if thread.owner else thread.repository
    raise UnknownWorkloadError(
        f"no workload reproduces {where}#{thread.number}. These threads have one:{listed}\n"
        "workloads/README.md says how to add another: name the thread in its links."
    )
