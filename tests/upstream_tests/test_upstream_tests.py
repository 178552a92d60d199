"""The engine's tests on both arms of a small engine, with everything that tests can do to whoever runs them."""

from __future__ import annotations

import json
import sys
import textwrap
from pathlib import Path

import pytest

from harness.experiments import codec
from harness.progress import Progress
from harness.series.reader import read_series
from harness.upstream_tests.arms import TestArm
from harness.upstream_tests.compare import changes
from harness.upstream_tests.model import ChangeKind, TestOutcome, read_report
from harness.upstream_tests.record import Ended, read_record
from harness.upstream_tests.run import Limits
from harness.upstream_tests.session import Session, run_session
from harness.vocabulary import Device, Source
from tests.series.conftest import numbered
from tests.upstream_fakes import SPDX

COMMAND = ("upstream_tests", "vllm/faster-core", "--python", sys.executable)
CORE = "VALUE = {value}\n"
OTHER = """
    import os, signal, socket, time, urllib.request
    import pytest
    from vllm.core import VALUE

    def test_passes():
        assert VALUE

    @pytest.mark.skip(reason=f"no file beside {__file__}")
    def test_is_skipped_with_a_place():
        pass

    def test_breaks_with_the_series():
        assert VALUE == 1

    def test_fails_on_both():
        assert VALUE == 3

    def test_is_mended():
        assert VALUE == 2

    @pytest.mark.skipif(VALUE == 2, reason="not with two")
    def test_is_newly_skipped():
        pass

    @pytest.mark.skip(reason="needs CUDA")
    def test_is_skipped_on_both():
        pass
"""
NASTY = """
    import ctypes, os, socket, time, urllib.request
    import pytest
    from vllm.core import VALUE

    def test_before():
        pass

    def test_crashes_the_interpreter():
        if VALUE == 2:
            ctypes.string_at(0)

    def test_between():
        pass

    def test_hangs():
        if VALUE == 2:
            time.sleep(600)

    def test_leaves_by_itself():
        if VALUE == 2:
            os._exit(7)

    def test_needs_the_network():
        urllib.request.urlopen("http://example.org/")

    def test_needs_an_address():
        socket.create_connection(("192.0.2.1", 80), timeout=1)

    def test_needs_a_model():
        raise OSError("my-org/my-model is not a local folder and is not a valid model identifier listed on the hub")

    def test_talks_to_itself():
        with socket.create_server(("127.0.0.1", 0)) as server:
            socket.create_connection(server.getsockname()).close()

    def test_after():
        pass
"""
FILES = ("tests/test_other.py", "tests/test_nasty.py", "tests/test_broken.py", "tests/test_new.py", "tests/test_gone.py")


@pytest.fixture
def engine(person):
    """A series that sets VALUE from 1 to 2, with a test of that, and the two trees as folders."""
    base = {
        "vllm/__init__.py": "",
        "vllm/core.py": CORE.format(value=1),
        "tests/__init__.py": "",
        "tests/helper.py": "X = 1\n",
        "tests/test_other.py": textwrap.dedent(OTHER),
        "tests/test_nasty.py": textwrap.dedent(NASTY),
        "tests/test_broken.py": "import vllm.nothing\n",
        "pytest.ini": "[pytest]\nmarkers =\n    slow: takes long\n",
    }
    person.upstream.commit("an engine", base)
    person.upstream.git("tag", "--force", "v1.0")
    new = SPDX + "from tests.helper import X\nfrom vllm.core import VALUE\n\ndef test_new():\n    assert VALUE == X + 1\n"
    listed = json.dumps(list(FILES))
    person.make_series({"vllm/core.py": CORE.format(value=2), "tests/test_new.py": new}, upstream_tests=listed)
    code, out, err = person.asks("apply", "vllm/faster-core", "--update-lock")
    assert code == 0, err
    patched = Path(out.split()[1])
    below = person.paths.root / "base"
    person.upstream.git("worktree", "add", "--quiet", "--detach", str(below), "v1.0")
    return person, below, patched


def run(engine, *words):
    person, below, patched = engine
    limits = ("--test-timeout", "4", "--file-timeout", "60")
    return person.types(*COMMAND, "--arms", str(below), str(patched), *limits, *words)


def of(report, kind):
    return {one.test.partition("::")[2] or one.test: one for one in report.changes if one.kind is kind}


@pytest.fixture
def report(engine):
    """The stored result of all files; one run for the many things to be looked at."""
    code, out, err = run(engine, "--save")
    assert code == 1, err
    person = engine[0]
    (file,) = (person.series() / "evidence").glob("*-upstream-tests-1.0-*.json")
    assert f'evidence = ["evidence/{file.name}"]' in (person.series() / "series.toml").read_text()
    return read_report(file), out


def test_every_end_of_a_test_is_told_apart_and_nothing_ends_the_session(engine, report):
    person, _, patched = engine
    result, out = report
    new = of(result, ChangeKind.NEW_FAILURE)
    assert {name: one.patched for name, one in new.items()} == {
        "test_breaks_with_the_series": TestOutcome.FAILED,
        "test_crashes_the_interpreter": TestOutcome.CRASHED,
        "test_hangs": TestOutcome.TIMED_OUT,
        "test_leaves_by_itself": TestOutcome.CRASHED,
    }
    assert new["test_crashes_the_interpreter"].detail == "the interpreter ended with SIGSEGV"
    assert new["test_hangs"].detail == "longer than 4 s"
    assert new["test_leaves_by_itself"].detail == "the interpreter ended with exit code 7"
    assert new["test_breaks_with_the_series"].detail == "assert 2 == 1"
    # the series' own test fails without it, and passes with it
    assert set(of(result, ChangeKind.FIXED)) == {"test_is_mended", "test_new"}
    assert set(of(result, ChangeKind.NEWLY_SKIPPED)) == {"test_is_newly_skipped"}
    assert set(of(result, ChangeKind.STILL_FAILING)) == {"test_fails_on_both", "(collection)"}
    assert result.missing_files == ("tests/test_gone.py",)
    assert result.base.counts == {"passed": 10, "failed": 3, "skipped": 2, "error": 1, "needs network or model": 3}
    expected = {"passed": 7, "failed": 2, "skipped": 3, "error": 1, "crashed": 2, "timed-out": 1, "needs network or model": 3}
    assert result.patched.counts == expected
    assert sum(result.base.counts.values()) == sum(result.patched.counts.values())
    assert result.patched.skips["needs CUDA"] == 1
    assert result.patched.skips["not with two"] == 1
    assert result.patched.skips["no file beside (path)/tests/test_other.py"] == 1
    assert any("no network in upstream tests" in reason for reason in result.patched.skips)
    assert any("is not a local folder" in reason for reason in result.patched.skips)
    tips = person.paths.lock_file.read_text()
    assert f'git = "{result.patched.tip}"' in tips
    assert result.patched.tip.startswith(patched.name)
    assert "new failure (4):" in out
    assert codec.decode(type(result), json.loads(codec.pretty(result)), "stored") == result
    assert "not in this source of vllm 1.0: tests/test_gone.py" in out


def test_a_good_series_ends_well_and_a_selection_is_part_of_the_command(engine):
    code, out, err = run(engine, "--files", "tests/test_new.py", "tests/test_other.py", "-k", "new or mended or passes")
    assert code == 0, err
    assert "fixed (2):" in out
    assert "new failure" not in out


def test_folders_that_are_not_what_the_patches_say_are_refused(engine):
    _, below, patched = engine
    (below / "tests" / "test_new.py").write_text("x\n")
    (patched / "vllm" / "core.py").write_text(CORE.format(value=5))
    code, out, err = run(engine)
    assert code == 1
    assert out == ""
    assert f"{below}: tests/test_new.py is there, and should not be" in err
    assert f"{patched}: vllm/core.py is another file" in err


def test_an_interpreter_that_is_none_or_has_no_pytest_is_said(engine, tmp_path):
    person, below, patched = engine
    empty = tmp_path / "python"
    empty.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    empty.chmod(0o755)
    arms = ("--arms", str(below), str(patched))
    code, _, err = person.types("upstream_tests", "vllm/faster-core", "--python", str(empty), *arms)
    assert code == 1
    assert "has no pytest" in err
    code, _, err = person.types("upstream_tests", "vllm/faster-core", "--python", "/nonexistent", *arms)
    assert code == 1
    assert "cannot be asked for its packages" in err


def test_a_series_without_tests_is_told_to_name_some(engine):
    person = engine[0]
    toml = person.series() / "series.toml"
    toml.write_text(toml.read_text().replace(json.dumps(list(FILES)), "[]"))
    code, _, err = run(engine)
    assert code == 1
    assert "names no upstream_tests" in err


def test_an_own_test_that_fails_on_both_is_a_new_failure():
    failed = {"tests/test_new.py::test_x": Ended(TestOutcome.FAILED, "no")}
    (change,) = changes(failed, failed, {"tests/test_new.py"})
    assert change.kind is ChangeKind.NEW_FAILURE
    (change,) = changes(failed, failed, set())
    assert change.kind is ChangeKind.STILL_FAILING


def test_a_test_that_passed_and_is_no_longer_run_is_shown():
    passed = {"t.py::test_x": Ended(TestOutcome.PASSED, "")}
    for after in (TestOutcome.UNAVAILABLE, TestOutcome.NOT_RUN):
        (change,) = changes(passed, {"t.py::test_x": Ended(after, "why")}, ())
        assert (change.kind, change.detail) == (ChangeKind.NO_LONGER_RUN, "why")
    (change,) = changes(passed, {}, ())
    assert change.patched is TestOutcome.ABSENT


def test_half_a_line_of_a_record_is_not_read(tmp_path):
    file = tmp_path / "record.jsonl"
    file.write_text('{"event": "start", "test": "a"}\n{"event": "end", "te')
    record = read_record(file)
    assert record.running == "a"
    assert record.ended == {}


def test_tests_inside_an_engine_s_package_run_against_each_arm_s_own_code(person, tmp_path):
    """SGLang's layout: the package below python/, some tests inside it, and a wheel without the folder test/."""
    inside, outside = "python/sglang/test/test_inside.py", "test/registered/test_own.py"
    text = "import sglang.core\n\ndef test_value():\n    assert sglang.core.VALUE == 2\n"
    arms = []
    for name, value in (("base", 1), ("patched", 2)):
        root = tmp_path / name
        files = {"python/sglang/__init__.py": "", "python/sglang/core.py": f"VALUE = {value}\n", inside: text}
        for file, content in (files | ({outside: text} if value == 2 else {})).items():
            (root / file).parent.mkdir(parents=True, exist_ok=True)
            (root / file).write_text(content)
        environment = {"PYTHONPATH": str(root / "python"), "PYTHONSAFEPATH": "1"}
        arms.append(TestArm(name, root, Path(sys.executable), environment, "0" * 40, Source.ARCHIVE))
    person.release({"engine/core.py": numbered(80, _1="one")})
    directory = person.make_series({outside: text}, name="sglang/x", pin='"1.0"')
    series = read_series(person.paths, directory.parent.name + "/x")
    missing = "test/registered/test_gone.py"
    files = (inside, outside, missing)
    session = Session(series, "1.0", Device.CPU, files, (), Limits(60, 60), tmp_path / "output")
    report = run_session(session, arms[0], arms[1], Progress(quiet=True))
    assert report.missing_files == (missing,)
    assert report.base.counts == {"failed": 2}
    assert report.patched.counts == {"passed": 2}
    assert {one.test for one in report.changes if one.kind is ChangeKind.FIXED} == {
        f"{inside}::test_value",
        f"{outside}::test_value",
    }
