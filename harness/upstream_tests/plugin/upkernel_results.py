"""A pytest plugin: writes down each test as it begins and ends, so that a hang or a crash loses nothing but itself.

Loaded with `-p upkernel_results` into the engine's own environment: the standard library and pytest only. Events go line by
line to $UPKERNEL_TEST_RECORD; tests named in $UPKERNEL_TEST_DONE (one a line) are left out, because they ran before a crash.
Sockets to other machines are refused, so that a test which needs one fails at once, in the same way everywhere, and is known
for it.
"""
# ruff: noqa: INP001 -- not a package

from __future__ import annotations

import ipaddress
import json
import os
import socket
from typing import Any

import pytest

REFUSED = "upkernel: no network in upstream tests"
# What Hugging Face's libraries say when a model's files are not here.
ABSENT = (
    REFUSED,
    "OfflineModeIsEnabled",
    "LocalEntryNotFoundError",
    "outgoing traffic has been disabled",
    "is not a local folder and is not a valid model identifier",
    "couldn't connect to 'https://huggingface.co'",
    "Cannot find any model weights",
)
LINE = 300  # characters of a detail

_phases: dict[str, list[pytest.TestReport]] = {}


def _write(entry: dict[str, Any]) -> None:
    # Opened for each line: a crash in the next instruction loses nothing.
    with open(os.environ["UPKERNEL_TEST_RECORD"], "a", encoding="utf-8") as stream:  # noqa: PTH123
        stream.write(json.dumps(entry) + "\n")


def _is_here(host: object) -> bool:
    if host in {None, "", "localhost", b"localhost", socket.gethostname()}:
        return True
    try:
        address = ipaddress.ip_address(host.decode() if isinstance(host, bytes) else str(host))
    except ValueError:
        return False
    return address.is_loopback or address.is_unspecified or str(address) in _own_addresses


def _find_own_addresses() -> frozenset[str]:
    try:
        return frozenset(str(one[4][0]) for one in socket.getaddrinfo(socket.gethostname(), None))
    except OSError:
        return frozenset()


# torch.distributed meets at this machine's own address.
_own_addresses = _find_own_addresses()
_connect, _connect_ex, _getaddrinfo = socket.socket.connect, socket.socket.connect_ex, socket.getaddrinfo


def _check(family: int, address: Any) -> None:
    if family in {socket.AF_INET, socket.AF_INET6} and not _is_here(address[0]):
        raise ConnectionRefusedError(f"{REFUSED}: {address[0]}")


def _guarded_connect(self: socket.socket, address: Any) -> None:
    _check(self.family, address)
    return _connect(self, address)


def _guarded_connect_ex(self: socket.socket, address: Any) -> int:
    _check(self.family, address)
    return _connect_ex(self, address)


def _guarded_getaddrinfo(host: Any, *arguments: Any, **named: Any) -> Any:
    if not _is_here(host):
        raise socket.gaierror(socket.EAI_NONAME, f"{REFUSED}: {host!r}")
    return _getaddrinfo(host, *arguments, **named)


def pytest_configure(config: pytest.Config) -> None:  # noqa: ARG001 -- pytest's name
    socket.socket.connect = _guarded_connect  # type: ignore[method-assign, assignment]
    socket.socket.connect_ex = _guarded_connect_ex  # type: ignore[method-assign, assignment]
    socket.getaddrinfo = _guarded_getaddrinfo


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    _write({"event": "collected", "tests": [item.nodeid for item in items]})
    place = os.environ.get("UPKERNEL_TEST_DONE")
    if place:
        with open(place, encoding="utf-8") as stream:  # noqa: PTH123
            done = frozenset(stream.read().splitlines())
        gone = [item for item in items if item.nodeid in done]
        if gone:
            config.hook.pytest_deselected(items=gone)
            items[:] = [item for item in items if item.nodeid not in done]


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """A file that cannot be imported, or that skips itself, has no tests, and must not pass for one without any."""
    if report.failed:
        outcome, detail = _failure(str(report.longrepr), "error")
        _write({"event": "end", "test": f"{report.nodeid}::(collection)", "outcome": outcome, "detail": detail})
    elif report.skipped:
        _write({"event": "end", "test": f"{report.nodeid}::(collection)", "outcome": "skipped", "detail": _reason(report)})


def pytest_runtest_logstart(nodeid: str, location: object) -> None:  # noqa: ARG001 -- pytest's name
    _phases[nodeid] = []
    _write({"event": "start", "test": nodeid})


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    _phases.setdefault(report.nodeid, []).append(report)


def pytest_runtest_logfinish(nodeid: str, location: object) -> None:  # noqa: ARG001 -- pytest's name
    outcome, detail = _outcome(_phases.pop(nodeid, []))
    _write({"event": "end", "test": nodeid, "outcome": outcome, "detail": detail})


def _outcome(reports: list[pytest.TestReport]) -> tuple[str, str]:
    for report in reports:
        if report.failed:
            return _failure(str(report.longrepr), "failed" if report.when == "call" else "error")
    for report in reports:
        if hasattr(report, "wasxfail"):
            return ("xfailed" if report.skipped else "xpassed"), str(report.wasxfail)[:LINE]
        if report.skipped:
            return "skipped", _reason(report)
    return "passed", ""


def _failure(text: str, outcome: str) -> tuple[str, str]:
    lines = [line.rstrip() for line in text.splitlines() if line.strip()]
    # pytest marks with "E" what was wrong. Of an exception that came of another, the last block is the one that came out, and
    # its first line names it.
    marked = [number for number, line in enumerate(lines) if line.startswith("E ")]
    first = next((number for number in reversed(marked) if number - 1 not in marked), len(lines) - 1)
    detail = lines[first].removeprefix("E").strip()[:LINE] if lines else ""
    named = next((one for one in ABSENT if one in text), None)
    return ("needs network or model", detail or str(named)) if named else (outcome, detail)


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    longrepr = report.longrepr
    text = str(longrepr[2]) if isinstance(longrepr, tuple) else str(longrepr)
    return text.removeprefix("Skipped: ").strip()[:LINE]
