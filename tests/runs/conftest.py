from __future__ import annotations

import pytest

from harness.runs import client, engine_backend, engine_sessions, guards, process, server
from tests.runs.fake_bench import Bench


@pytest.fixture
def polls() -> float | None:
    """Seconds between two looks at a process; None leaves what users get."""
    return 0.05


@pytest.fixture
def bench(tmp_path, monkeypatch, polls):
    """Waiting is short, other load on the machine is no matter, and no process may be left at the end."""
    made = Bench(tmp_path)
    monkeypatch.setattr(engine_backend, "_AFTER_FAILURE_S", 0.3)
    monkeypatch.setattr(engine_sessions, "_DYING_S", 0.5)
    if polls is not None:
        for module, name in ((process, "_POLL_S"), (client, "_POLL_S"), (server, "POLL_S"), (engine_backend, "POLL_S")):
            monkeypatch.setattr(module, name, polls)
    monkeypatch.setattr(process, "_VMSTAT", made.vmstat)
    monkeypatch.setattr(guards, "LOAD_LIMIT", float("inf"))
    monkeypatch.setattr(guards, "MEMORY_LIMIT", 0)
    yield made
    for session in made.opened:
        session.close()
    assert not made.left()
