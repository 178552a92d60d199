from __future__ import annotations

import datetime
from pathlib import Path

import pytest

from harness.errors import SeriesError
from harness.series.lint import Severity, lint_series
from harness.series.reader import read_series
from harness.series.rules import read_rules
from harness.vocabulary import Engine

from .conftest import SERIES, numbered

RULES = Path(__file__).parents[2] / "upstream" / "rules.toml"
TODAY = datetime.date(2026, 12, 1)
SPDX = "# SPDX-License-Identifier: Apache-2.0\n# SPDX-FileCopyrightText: Copyright contributors to the vLLM project\n"
MESSAGE = "[Kernel] Faster core\n\nIt is slow."
TEST = {"tests/test_core.py": SPDX + "def test_core():\n    assert True\n"}
READY = SERIES.replace('status = "draft"', 'status = "ready"')


def lint(series, engine=Engine.VLLM):
    return [f"{one.where}: {one.message}" for one in lint_series(series, read_rules(RULES, engine), today=TODAY)]


@pytest.fixture
def lint_commit(repo, series_of):
    """What lint says of a series of one commit with these files, a test always among them."""

    def run(files, message=MESSAGE, test=TEST):
        base = repo.head()
        repo.commit(message, files | test)
        return lint(series_of(repo, base))

    return run


def test_a_good_series_has_no_findings(lint_commit):
    assert lint_commit({"engine/core.py": numbered(80, _30="thirty")}) == []


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("x = 1  ", "has space at its end"),
        ("x = 1\t", "has space at its end"),
        ("   ", "has space at its end"),
        ("\tx = 1", "is indented with a tab"),
        ("x = 1\r", "ends with a carriage return"),
        ("x = '" + "y" * 83 + "'", "is 89 columns wide, the engine allows 88"),
        ("import triton", "'import triton' is not allowed: from vllm.triton_utils import tl, triton"),
        ("    import triton.language as tl", "is not allowed: from vllm.triton_utils"),
        ("from triton import jit", "is not allowed: from vllm.triton_utils"),
        ("import re", "'import re' is not allowed: import regex as re"),
        ("from re import match", "is not allowed: import regex as re"),
        ("import pickle", "is not allowed: no pickle"),
        ("import base64", "is not allowed: import pybase64"),
    ],
)
def test_a_bad_line_is_named_with_its_place(lint_commit, line, complaint):
    (finding,) = lint_commit({"engine/core.py": numbered(80, _30=line)})
    assert finding.startswith("0001-kernel-faster-core.patch: engine/core.py:30: ")
    assert complaint in finding


@pytest.mark.parametrize("line", ["torch.cuda.synchronize()", "torch.cuda.empty_cache()", "n = torch.cuda.device_count()"])
def test_calls_that_bind_to_one_vendor_are_named(lint_commit, line):
    (finding,) = lint_commit({"vllm/core.py": f"{SPDX}{line}\n"})
    assert "vllm/core.py:3: " in finding
    assert "torch.accelerator" in finding


@pytest.mark.parametrize(
    "line",
    [
        "x = 1",
        "import regex as re",
        "import resource",
        "from vllm.triton_utils import tl, triton",
        "x" * 88,
        "x" * 99 + "  # noqa: E501",
    ],
)
def test_a_good_line_is_left_alone(lint_commit, line):
    assert lint_commit({"engine/core.py": numbered(80, _30=line)}) == []


def test_lines_that_were_there_before_are_not_the_patch_s_fault(repo, series_of):
    repo.commit("base", {"engine/core.py": numbered(80, _29="import re  ")})
    base = repo.head()
    repo.commit(MESSAGE, {"engine/core.py": numbered(80, _29="import re  ", _30="thirty")} | TEST)
    assert lint(series_of(repo, base)) == []


def test_columns_count_in_python_only(lint_commit):
    assert lint_commit({"README.md": "x" * 200 + "\n"}) == []


def test_a_new_python_file_needs_its_license_lines(lint_commit):
    (finding,) = lint_commit({"engine/new.py": "x = 1\n"})
    assert "engine/new.py: a new file must start with '# SPDX-License-Identifier: Apache-2.0' and" in finding


def test_license_lines_may_come_after_a_shebang(lint_commit):
    assert lint_commit({"engine/new.py": f"#!/usr/bin/env python3\n{SPDX}x = 1\n"}) == []


def test_a_missing_last_line_feed_is_named(lint_commit):
    (finding,) = lint_commit({"engine/core.py": numbered(80) + "end"})
    assert "engine/core.py: the last line has no line feed" in finding


def test_a_binary_file_is_named(lint_commit):
    (finding,) = lint_commit({"picture.bin": bytes(256)})
    assert "picture.bin: is binary" in finding


@pytest.mark.parametrize(
    ("message", "complaint"),
    [
        ("[Kernel] Faster core", "has a subject only"),
        ("[Kernel] Faster core\n\nCo-authored-by: X <x@example.org>", "has a subject only"),
        ("[Kernel] Faster core\n\nSlow.\n\nSigned-off-by: X <x@example.org>", "has a sign-off"),
        ("Faster core\n\nSlow.", "subject 'Faster core' must start with one of [Bugfix]"),
        ("[Kernels] Faster core\n\nSlow.", "must start with one of [Bugfix]"),
    ],
)
def test_a_bad_message_is_named(lint_commit, message, complaint):
    (finding,) = lint_commit({"engine/core.py": numbered(80, _30="thirty")}, message)
    assert complaint in finding


def test_an_engine_without_a_title_rule_takes_any_title(repo, series_of):
    base = repo.head()
    repo.commit("Faster core\n\nSlow.", {"engine/core.py": numbered(80, _30="thirty"), "test/test_core.py": "x\n"})
    assert lint(series_of(repo, base, "sglang/x"), Engine.SGLANG) == []


def test_a_patch_without_a_test_is_named(lint_commit):
    (finding,) = lint_commit({"engine/core.py": numbered(80, _30="thirty")}, test={})
    assert finding == "0001-kernel-faster-core.patch: has no test, and none follows it (a file of tests/*)"


def test_a_test_may_follow_but_not_precede(repo, series_of):
    base = repo.head()
    repo.commit("[Kernel] One\n\nSlow.", {"engine/core.py": numbered(80, _30="thirty")})
    repo.commit("[Kernel] Two\n\nSlow.", TEST)
    repo.commit("[Kernel] Three\n\nSlow.", {"engine/core.py": numbered(80, _31="31")})
    (finding,) = lint(series_of(repo, base))
    assert finding.startswith("0003-kernel-three.patch: has no test")


def test_documentation_needs_no_test(lint_commit):
    assert lint_commit({"docs/x.md": "text\n"}, test={}) == []


def test_gaps_in_the_numbers_and_odd_names_are_named(make_series, repo, series_of, paths):
    base = repo.head()
    repo.commit(MESSAGE, TEST)
    directory = series_of(repo, base).directory
    (directory / "0001-kernel-faster-core.patch").rename(directory / "0003-kernel-faster-core.patch")
    (directory / "fix.patch").write_bytes(b"")
    assert lint(read_series(paths, "vllm/x")) == [
        "fix.patch: is not called NNNN-words.patch, so nothing applies it",
        "0003-kernel-faster-core.patch: should have number 0001: numbers go up from 0001 without gaps",
    ]


def test_a_file_that_is_no_patch_is_named(make_series):
    assert lint(make_series(patches={"0001-a.patch": b""})) == ["0001-a.patch: 0001-a.patch is empty"]


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (('title = "Faster core"', 'title = ""'), "title is empty"),
        (('why = "It is slow."', 'why = ""'), "why is empty"),
        (('removal = "Upstream has it."', 'removal = ""'), "removal is empty"),
        (('links = ["https://example.org/issues/1"]\nafter', "links = []\nafter"), "links is empty"),
        (("[duplicates]\ndate = 2026-11-30\nlinks = []\n", ""), "duplicates is missing"),
    ],
)
def test_a_draft_may_lack_what_a_ready_series_needs(repo, series_of, make_series, change, complaint):
    base = repo.head()
    repo.commit(MESSAGE, TEST)
    draft = series_of(repo, base, "vllm/x", SERIES.replace(*change))
    (finding,) = lint_series(draft, read_rules(RULES, Engine.VLLM), today=TODAY)
    assert complaint in finding.message
    assert finding.severity is Severity.TODO
    (draft.directory / "proof.json").write_text("{}")
    ready = READY.replace("evidence = []", 'evidence = ["proof.json"]').replace(*change)
    (draft.directory / "series.toml").write_text(ready)
    (finding,) = lint_series(read_series(_paths(draft), "vllm/x"), read_rules(RULES, Engine.VLLM), today=TODAY)
    assert complaint in finding.message
    assert finding.severity is Severity.ERROR


def _paths(series):
    from harness.paths import Paths

    return Paths.of(root=series.directory.parents[2], state=series.directory.parents[2] / "state")


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (("status_date = 2026-11-30", "status_date = 2026-12-02"), "status_date is in the future: 2026-12-02"),
        (("date = 2026-11-30\nlinks", "date = 2027-01-01\nlinks"), "duplicates.date is in the future: 2027-01-01"),
        (("https://example.org/issues/1", "#1"), "'#1' is not a link"),
        (('status = "draft"', 'status = "ready"'), "status ready needs evidence"),
        (("evidence = []", 'evidence = ["evidence/gone.json"]'), "evidence 'evidence/gone.json' is not there"),
        (("workloads = []", 'workloads = ["vllm/gone"]'), "workload 'vllm/gone' is not in workloads/"),
        (("ports = []", 'ports = ["0.33.0"]'), "port '0.33.0' has no patches in ports/0.33.0/"),
    ],
)
def test_what_is_wrong_in_series_toml_is_named(repo, series_of, change, complaint):
    base = repo.head()
    repo.commit(MESSAGE, TEST)
    (finding,) = lint_series(series_of(repo, base, text=SERIES.replace(*change)), read_rules(RULES, Engine.VLLM), today=TODAY)
    assert complaint in finding.message
    assert finding.severity is Severity.ERROR


def test_a_port_that_is_not_listed_is_named(repo, series_of):
    base = repo.head()
    repo.commit(MESSAGE, TEST)
    series = series_of(repo, base)
    (series.directory / "ports/0.33.0").mkdir(parents=True)
    assert lint(series) == ["ports/0.33.0: is not listed in series.toml (ports)"]


def test_patches_of_a_port_are_looked_at_too(repo, series_of):
    base = repo.head()
    repo.commit(MESSAGE, TEST)
    series = series_of(repo, base, text=SERIES.replace("ports = []", 'ports = ["0.33.0"]'))
    (series.directory / "ports/0.33.0").mkdir(parents=True)
    (series.directory / "ports/0.33.0/0001-a.patch").write_bytes(b"")
    assert lint(series) == ["0001-a.patch: 0001-a.patch is empty"]


def test_malformed_rules_are_refused_by_field(tmp_path):
    text = RULES.read_text(encoding="utf-8")
    (tmp_path / "rules.toml").write_text(text.replace("columns = 88", 'columns = "88"'))
    with pytest.raises(SeriesError, match=r"field 'vllm\.columns' is malformed: got '88'"):
        read_rules(tmp_path / "rules.toml", Engine.VLLM)
    (tmp_path / "rules.toml").write_text(text.replace("pattern = '^\\s*(import triton", "pattern = '(^\\s*(import triton"))
    with pytest.raises(SeriesError, match=r"field 'vllm\.forbidden\[0\]\.pattern' is malformed"):
        read_rules(tmp_path / "rules.toml", Engine.VLLM)


@pytest.mark.parametrize("engine", Engine)
def test_every_engine_has_rules(engine):
    assert read_rules(RULES, engine).tests
