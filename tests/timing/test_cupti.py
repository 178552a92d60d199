"""Reading CUPTI's records, through a stand-in for its module; overlap is counted once."""

from __future__ import annotations

import importlib.machinery
import sys
import types
from types import SimpleNamespace

import pytest

from harness.timing.cupti import KernelSpan, busy_us, kernel_spans


@pytest.fixture
def cupti(monkeypatch):
    """Hands over what was recorded when it is flushed, as the real one does."""
    made = types.ModuleType("cupti")
    inner = SimpleNamespace(ActivityKind=SimpleNamespace(CONCURRENT_KERNEL=1, MEMCPY=2, MEMSET=3), log=[], records=[])
    inner.activity_register_callbacks = lambda requested, completed: setattr(inner, "give", (requested, completed))
    inner.activity_enable = lambda kind: inner.log.append(("on", kind))
    inner.activity_disable = lambda kind: inner.log.append(("off", kind))
    inner.activity_flush_all = lambda _flag: inner.give[1](inner.records)
    inner.finalize = lambda: inner.log.append("detached")
    made.cupti = inner
    made.__spec__ = importlib.machinery.ModuleSpec("cupti", None)
    monkeypatch.setitem(sys.modules, "cupti", made)
    return inner


def test_kernels_are_collected_in_order_and_cupti_is_detached(cupti):
    def run():
        cupti.records += [
            SimpleNamespace(kind=1, name="second", start=2000, end=5000),
            SimpleNamespace(kind=9, start=0, end=10),
            SimpleNamespace(kind=1, name="first", start=1000, end=2500),
        ]

    spans = kernel_spans(run)
    assert spans == (KernelSpan("first", 1000, 2500), KernelSpan("second", 2000, 5000))
    assert busy_us(spans) == pytest.approx(4.0)
    assert cupti.log[-1] == "detached"
    assert {("off", one) for one in (1, 2, 3)} <= set(cupti.log[3:])


def test_it_is_detached_when_the_call_fails(cupti):
    def run():
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        kernel_spans(run)
    assert cupti.log[-1] == "detached"


def test_without_the_package_nothing_is_said(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupti", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    assert kernel_spans(lambda: None) is None
