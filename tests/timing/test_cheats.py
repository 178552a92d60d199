"""Every known way to look fast is caught, and by the guard that is about it; an honest kernel passes all."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from harness.timing import point as point_module
from harness.timing.cupti import KernelSpan
from harness.timing.point import Settings, measure, prepare
from harness.timing.workfile import Workfile
from tests.timing.fake_gpu import FakeGpu

ROWS, COLUMNS = 8, 64
MOVED = 2 * 4 * ROWS * COLUMNS
US = 5.0
QUICK = Settings(replays=5, warm_ms=0.0)


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


class Lazy(np.ndarray):
    """Looks like an array; a real one would compute in its accessors."""


class Kernel:
    """A softmax in one fake kernel; the subclasses cheat."""

    us = US
    rows = ROWS
    fresh = ("x",)
    tolerance = 1e-9

    def __init__(self, gpu):
        self.gpu = gpu

    def make(self, _point, _device, seed):
        x = np.random.default_rng(seed).standard_normal((self.rows, COLUMNS))
        return {"inputs": {"x": x}, "fresh": self.fresh, "out": np.empty_like(x)}

    def work(self, case):
        case["out"][...] = softmax(case["inputs"]["x"])

    def call(self, case):
        self.gpu.launch(lambda: self.work(case), self.us)
        return case["out"]

    def workfile(self, **changes):
        fields = {
            "path": Path("fake.py"),
            "why": "",
            "links": (),
            "points": ({"name": "p"},),
            "published": (),
            "primary": "cold",
            "devices": ("cuda",),
            "tolerance": {"float64": self.tolerance},
            "variants": {},
            "make": self.make,
            "call": self.call,
            "reference": lambda case: softmax(case["inputs"]["x"].copy()),
            "bytes_and_flops": lambda _point: (MOVED, 0),
        }
        return Workfile(**(fields | changes))

    def measured(self, settings=QUICK, **changes):
        work = self.workfile(**changes)
        ready = prepare(self.gpu, work, work.points[0], None, settings)
        return measure(self.gpu, work, ready, settings)


class KeptOutput(Kernel):
    """Computes once, and then returns what it has without a launch."""

    def call(self, case):
        if "kept" not in case:
            self.gpu.launch(lambda: self.work(case), self.us)
            case["kept"] = case["out"]
        return case["kept"]


class KeptCopy(Kernel):
    """Computes once, and then copies what it has, which is quicker: the values of the timed calls are right."""

    def call(self, case):
        if "kept" not in case:
            case["kept"] = softmax(case["inputs"]["x"])
        self.gpu.launch(lambda: case["out"].__setitem__(..., case["kept"]), 1.5)
        return case["out"]


class SideStream(Kernel):
    """Launches on a stream that is not the timed one."""

    def call(self, case):
        self.gpu.launch(lambda: self.work(case), self.us, stream="side")
        self.gpu.launch(lambda: None, 1.0)
        return case["out"]


class Unjoined(Kernel):
    """Has the result ready only after the end of the span."""

    def call(self, case):
        self.gpu.launch(lambda: None, 2.0)
        self.gpu.launch(lambda: self.work(case), 500.0, stream="side", joined=False)
        return case["out"]


class InputWritten(Kernel):
    """Leaves the maximum subtracted, so that the next call need not: the softmax stays right."""

    def work(self, case):
        x = case["inputs"]["x"]
        x -= x.max(-1, keepdims=True)
        super().work(case)


class InputReordered(Kernel):
    """Same values, other places."""

    def work(self, case):
        super().work(case)
        case["inputs"]["x"][...] = np.flip(case["inputs"]["x"], 0)


class Persisting(Kernel):
    def call(self, case):
        self.gpu.persisting = 4 * 2**20
        return super().call(case)


class LazyResult(Kernel):
    def call(self, case):
        return super().call(case).view(Lazy)


class Nothing(Kernel):
    def call(self, case):
        return case["out"]


class NaN(Kernel):
    def work(self, case):
        super().work(case)
        case["out"][3, 5] = np.nan


class HalfWritten(Kernel):
    def work(self, case):
        case["out"][: ROWS // 2] = softmax(case["inputs"]["x"])[: ROWS // 2]


class OneWrongRow(Kernel):
    """Within the tolerance overall (0.05 / 8), far outside it in one row."""

    rows = 64
    tolerance = 0.01

    def work(self, case):
        super().work(case)
        case["out"][2] *= 1.05


class StopsWriting(Kernel):
    """Writes the right output, but only the first few times."""

    def __init__(self, gpu):
        super().__init__(gpu)
        self.writes = {}

    def work(self, case):
        self.writes[id(case)] = self.writes.get(id(case), 0) + 1
        if self.writes[id(case)] < 4:
            super().work(case)


class TooFast(Kernel):
    us = 0.0005 * MOVED / 1e6  # half of bytes / bandwidth


CHEATS = {
    "results": (
        KeptOutput,
        KeptCopy,
        SideStream,
        InputWritten,
        InputReordered,
        Persisting,
        LazyResult,
        Nothing,
        NaN,
        HalfWritten,
        OneWrongRow,
        StopsWriting,
    ),
    "span": (Unjoined,),
    "floor": (TooFast, Nothing),
}


def test_an_honest_kernel_fires_nothing_and_its_time_is_that_of_one_call():
    result = Kernel(FakeGpu()).measured()
    assert result["fired"] == {}
    assert result["absent"] == {}
    assert result["times"]["cold"]["us"] == pytest.approx(US)
    assert result["times"]["warm"]["us"] == pytest.approx(US)
    assert result["times"]["cold"]["n"] == QUICK.replays
    # 3 x 4096 bytes of L2 and 4096 bytes a set: four sets, so that the first is out of the cache when its turn comes again.
    assert result["sets"] == 4
    assert result["times"]["cold"]["calls"] == 4
    assert result["times"]["warm"]["calls"] == 4
    assert result["errors"]["cold"] < 1e-12


@pytest.mark.parametrize(("guard", "cheat"), [(guard, cheat) for guard, cheats in CHEATS.items() for cheat in cheats])
def test_every_cheat_is_caught(guard, cheat):
    assert guard in cheat(FakeGpu()).measured()["fired"]


def test_a_kept_copy_is_seen_only_when_the_input_changes():
    """The check with other values is what catches it; the outputs of the timed calls are right."""
    kernel = KeptCopy(FakeGpu())
    fired = kernel.measured()["fired"]["results"]
    assert all("other input values" in one for one in fired)
    kernel = KeptCopy(FakeGpu())
    kernel.fresh = ()
    result = kernel.measured()
    assert result["fired"] == {}
    assert "would pass" in result["absent"]["results"]


def test_inputs_are_as_before_after_the_check_with_other_values():
    kernel = Kernel(FakeGpu())
    work = kernel.workfile()
    ready = prepare(kernel.gpu, work, work.points[0], None, QUICK)
    before = ready.cases[0]["inputs"]["x"].copy()
    for _ in range(2):
        assert measure(kernel.gpu, work, ready, QUICK)["fired"] == {}
    assert np.array_equal(ready.cases[0]["inputs"]["x"], before)


def test_a_result_that_goes_wrong_only_after_many_calls_is_seen_after_the_timing():
    class Tiring(Kernel):
        calls = 0

        def work(self, case):
            super().work(case)
            self.calls += 1
            if self.calls > 30:
                case["out"][0, 0] += 0.5

    fired = Tiring(FakeGpu()).measured(Settings(replays=12, warm_ms=0.0))["fired"]["results"]
    assert "after timing" in fired[0]


def test_compiling_in_the_window_is_seen(tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))

    class Compiles(Kernel):
        count = 0

        def work(self, case):
            super().work(case)
            self.count += 1
            (tmp_path / f"kernel-{self.count}.cubin").touch()

    fired = Compiles(FakeGpu()).measured()["fired"]["compilation"]
    assert "kernel-" in fired[0]


def test_kernels_that_cupti_sees_must_fit_into_the_span():
    gpu = FakeGpu()
    gpu.recorded = tuple(KernelSpan("softmax", index * 6000, index * 6000 + 5000) for index in range(4))
    result = Kernel(gpu).measured(Settings(states=("cold",), replays=5, warm_ms=0.0))
    assert result["fired"] == {}
    assert result["cupti"]["cold"] == {"us": pytest.approx(5.0), "kernels": {"softmax": 4}}
    gpu.recorded += (KernelSpan("on another stream", 40_000, 60_000),)
    fired = Kernel(gpu).measured(Settings(states=("cold",), replays=5, warm_ms=0.0))["fired"]
    assert "not all is in it" in fired["span"][0]


def test_host_time_is_measured_apart_from_the_gpu():
    kernel = Kernel(FakeGpu())
    result = kernel.measured(Settings(states=("cold", "host"), replays=5, warm_ms=0.0), host=lambda _case: sum(range(20_000)))
    assert result["times"]["cold"]["us"] == pytest.approx(US)
    assert result["times"]["host"]["us"] > 50
    assert result["times"]["host"]["n"] == point_module.HOST_CALLS


def test_a_tolerance_is_the_dtypes_unless_the_point_or_the_variant_has_one():
    work = Kernel(FakeGpu()).workfile(variants={"v": {"role": "peer", "tolerance": 0.05}, "w": {"role": "peer"}})
    assert work.tolerance_of("float64", {}, None) == 1e-9
    assert work.tolerance_of("float64", {"tolerance": 0.02}, "w") == 0.02
    assert work.tolerance_of("float64", {"tolerance": 0.02}, "v") == 0.05
    assert work.tolerance_of("int32", {}, None) == 0.0
