"""The page of a pull request, everything that keeps it from being written, and the branch."""

from __future__ import annotations

import datetime
import json
import shutil
import tomllib

import pytest

from harness.series.lock import read_lock
from harness.vocabulary import Source
from tests.series.conftest import Repository, numbered
from tests.upstream_fakes import ROOT, SPDX

CONFIRM = ROOT / "patches/vllm/penalties-bin-counts/evidence/20261201-182823-vllm-penalties-serve-confirm.json"
TEMPLATE = """\
<!-- markdownlint-disable -->

## Overview

<!-- Say what. -->

## Claims

## Validation

## \N{PUSHPIN} Details

---

- [ ] I have read every line.
"""
NOTES = """
[pr]
number = "23 % less time per token"
device = "AMD EPYC"
differs = "That one keeps counts, this one does not."
exactness = '''
| shape | bits that change |
| --- | --- |
| all | 0 |
'''
reproduce = ["nox -s bench_vllm -- --patched vllm/faster-core --confirm"]
evaluations = ["lm_eval --tasks gsm8k"]
not_run = "no GPU run"
ai_assistance = ""
[pr.claim]
kernel = "19 to 2 ms"
share = "30 %"
predicted = "25 %"
measured = "23 %"
"""
PR = ("pr", "vllm/faster-core", "--no-lint")
TODAY = datetime.datetime.now(tz=datetime.UTC).date()


def edit(person, old, new):
    file = person.series() / "series.toml"
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


def change(path, **values):
    """Set values in a JSON file by dotted path, with __ for the dots."""
    data = json.loads(path.read_text())
    for name, value in values.items():
        *above, last = name.split("__")
        place = data
        for key in above:
            place = place[int(key) if key.isdigit() else key]
        place[last] = value
    path.write_text(json.dumps(data))


def test_report(tip, base_tip, **changes):
    counts = {"passed": 10, "skipped": 2}
    arm = {"counts": counts, "skips": {"needs CUDA": 2}, "seconds": 3.5}
    return {
        "schema": 1,
        "kind": "upstream-tests",
        "written": "2026-12-04T00:00:00+00:00",
        "series": "vllm/faster-core",
        "engine": "vllm",
        "pin": "1.0",
        "source": "git",
        "device": "cpu",
        "machine": "AMD EPYC",
        "versions": {"torch": "2.11.0"},
        "command": "pytest tests/test_core.py",
        "files": ["tests/test_core.py"],
        "missing_files": [],
        "base": {"tip": base_tip, **arm},
        "patched": {"tip": tip, **arm},
        "changes": [],
    } | changes


test_report.__test__ = False


@pytest.fixture
def ready(person):
    """A series that lacks nothing: ported, locked, measured, tested."""
    directory = person.make_series(
        {"engine/core.py": numbered(80, _30="thirty"), "tests/test_core.py": SPDX + "x = 1\n"},
        title='"[Kernel] Faster core"',
        upstream_tests='["tests/test_core.py"]',
        evidence='["evidence/confirm.json", "evidence/tests.json", "evidence/notes.md"]',
    )
    person.release({"engine/core.py": numbered(80, _70="70"), ".github/PULL_REQUEST_TEMPLATE.md": TEMPLATE})
    assert person.asks("port", "vllm/faster-core", "--to", "head")[0] == 0
    assert person.asks("apply", "vllm/faster-core", "--update-lock")[0] == 0
    with (directory / "series.toml").open("a") as file:
        file.write(NOTES)
    (directory / "evidence").mkdir()
    (directory / "evidence" / "notes.md").write_text("x\n")
    confirm = directory / "evidence" / "confirm.json"
    shutil.copy(CONFIRM, confirm)
    tip = read_lock(person.paths.lock_file).tips["vllm/faster-core", "1.0", Source.GIT]
    values = {"label": "vllm/faster-core", "tip": tip, "pin": "1.0", "source": "git"}
    change(confirm, **{f"arms__patched__trees__0__{key}": value for key, value in values.items()})
    base = person.upstream.git("rev-parse", "v1.0^{commit}")
    (directory / "evidence" / "tests.json").write_text(json.dumps(test_report(tip, base)))
    return person


def refused(person, *words):
    """The list of what is missing; nothing may have been written."""
    before = (person.series() / "PR.md").read_text() if (person.series() / "PR.md").exists() else None
    code, out, err = person.asks(*PR, *words)
    assert code == 1, out
    after = (person.series() / "PR.md").read_text() if (person.series() / "PR.md").exists() else None
    assert after == before
    return err


def test_a_series_that_lacks_nothing_gets_its_page_on_the_engine_s_template(ready):
    code, out, err = ready.asks(*PR)
    assert code == 0, err
    page = (ready.series() / "PR.md").read_text()
    title = "[Kernel] Faster core: 23 % less time per token (AMD EPYC)"
    assert f"title  {title}" in out
    assert f"\n# {title}\n" in page
    order = [page.index(heading) for heading in ("## Overview", "## Claims", "## Validation", "## \N{PUSHPIN} Details")]
    assert order == sorted(order)
    # each part stands below its heading
    assert page.index("It is slow.") < page.index("## Claims")
    assert order[1] < page.index("| measured end to end | 23 % |") < order[2]
    assert order[2] < page.index("| mean_tpot_ms (ms, lower is better)") < order[3]
    assert "| 0.031 | 6 generations |" in page
    assert "-23.35 % [-26.37, -20.20]" in page
    assert "base against base in this plan: mean_tpot_ms -1.34 %" in page
    assert "| all | 0 |" in page
    assert "| patched | 10 | 2 |" in page
    assert "needs CUDA (2)" in page
    assert "lm_eval --tasks gsm8k" in page
    assert "nox -s bench_vllm -- --patched vllm/faster-core --confirm" in page
    assert order[3] < page.index("That one keeps counts, this one does not.")
    assert "Searched on 2026-11-30: none found" in page
    assert page.count("TO BE FILLED IN BY THE SUBMITTER") == 3
    assert page.endswith("- [ ] I have read every line.\n"), "the checklist is the submitter's"
    assert "Say what." not in page
    assert ".github/PULL_REQUEST_TEMPLATE.md of vllm-2.0" in page
    assert ready.asks(*PR, "--check")[0] == 0


def test_what_the_engine_s_linters_say_is_missing_too_and_that_they_were_content_is_said(ready, tmp_path, monkeypatch):
    program = tmp_path / "bin" / "ruff"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\nfor file; do :; done\n! grep -n thirty $file\n")
    program.chmod(0o755)
    monkeypatch.setattr("harness.linters.series.linter_environment", lambda *_: program.parent)
    code, _, err = ready.asks("pr", "vllm/faster-core")
    assert code == 1
    assert "vllm-2.0, engine/core.py: ruff==0.14.0 check (upstream/rules.toml: this source has no pyproject.toml):" in err
    assert "30:thirty" in err
    program.write_text("#!/bin/sh\nexit 0\n")
    assert ready.asks("pr", "vllm/faster-core")[0] == 0
    page = (ready.series() / "PR.md").read_text()
    assert "on the files of the series at 2.0: no complaint that the base does not have." in page
    assert ready.asks(*PR)[0] == 0
    assert "clang-format==21.1.2: not run here." in (ready.series() / "PR.md").read_text()


def test_a_page_that_is_not_current_fails_the_check(ready):
    code, out, _ = ready.asks(*PR, "--check")
    assert code == 1
    assert "is not what series.toml and evidence/ say now" in out
    assert not (ready.series() / "PR.md").exists()
    assert ready.asks(*PR)[0] == 0
    assert ready.asks(*PR, "--check")[0] == 0
    edit(ready, "19 to 2 ms", "19 to 3 ms")
    assert ready.asks(*PR, "--check")[0] == 1


def test_every_series_that_is_called_ready_is_checked_and_a_draft_is_not(ready):
    check = ("pr", "--check", "--no-lint")
    ready.make_series({"engine/other.py": numbered(20, _3="three")}, name="vllm/draft")
    code, out, _ = ready.asks(*check)
    assert (code, out) == (0, "0 series: 0 not ready for a pull request\n")
    assert ready.asks(*PR)[0] == 0
    edit(ready, 'status = "draft"', 'status = "ready"')
    code, out, _ = ready.asks(*check)
    assert (code, out.splitlines()[-1]) == (0, "1 series: 0 not ready for a pull request")
    toml = ready.series("vllm/draft") / "series.toml"
    toml.write_text(toml.read_text().replace('status = "draft"', 'status = "ready"'))
    code, out, _ = ready.asks(*check)
    assert code == 1
    assert "vllm/draft is not ready for a pull request" in out
    assert "vllm/faster-core: nothing is missing" in out
    code, _, err = ready.asks("pr")
    assert code == 2
    assert "name a series" in err


def test_everything_that_is_missing_is_listed_at_once(person):
    person.make_series({"engine/core.py": numbered(80, _30="thirty"), "tests/test_core.py": SPDX + "x = 1\n"})
    person.release({"engine/core.py": numbered(80, _70="70"), ".github/PULL_REQUEST_TEMPLATE.md": TEMPLATE})
    err = refused(person)
    for one in (
        "there is no port to vllm-2.0, which a pull request must meet: `nox -s port -- vllm/faster-core --to 2.0`",
        "upstream_tests is empty",
        "series.toml has no [pr]",
        "title 'Faster core' must start with one of [Bugfix]",
        "no evidence is of a confirm experiment",
        "no evidence is a result of the engine's own tests",
    ):
        assert one in err, err
    assert "6 things are missing" in err
    # the fields that the message shows are the fields that the reader takes
    skeleton = "\n".join(line[4:] for line in err.splitlines() if line.startswith("    "))
    with (person.series() / "series.toml").open("a") as file:
        file.write("\n" + skeleton)
    assert tomllib.loads(skeleton)["pr"]["claim"]["kernel"] == ""
    err = refused(person)
    assert "[pr] differs is empty" in err
    assert "[pr] claim.measured is empty" in err
    assert "[pr] reproduce is empty" in err


def test_evidence_of_another_commit_is_refused(ready):
    change(ready.series() / "evidence/confirm.json", arms__patched__trees__0__tip="a" * 40)
    err = refused(ready)
    assert "evidence evidence/confirm.json: it is of commit aaaaaaaaaaaa, but vllm/faster-core on 1.0 from git is" in err
    assert "1 things are missing" in err


def test_evidence_of_another_series_or_of_a_tree_with_changes_is_refused(ready):
    change(ready.series() / "evidence/confirm.json", arms__patched__trees__0__changes="b" * 64)
    assert "its patched tree had uncommitted changes" in refused(ready)
    change(ready.series() / "evidence/confirm.json", arms__patched__trees__0__label="vllm/other")
    assert "not vllm/faster-core" in refused(ready)


def test_evidence_of_another_device_is_refused(ready):
    edit(ready, 'device = "AMD EPYC"', 'device = "H200"')
    err = refused(ready)
    assert "evidence/confirm.json: it was measured on AMD EPYC, 2 of 2 cores, but [pr] says H200" in err
    assert "evidence/tests.json: it was run on AMD EPYC, but [pr] says H200" in err


def test_evidence_with_a_changed_plan_or_of_garbage_is_refused_with_the_others_still_looked_at(ready):
    change(ready.series() / "evidence/confirm.json", plan__alpha=0.06)
    (ready.series() / "evidence/tests.json").write_text("{")
    err = refused(ready)
    assert "the plan was changed after the experiment" in err
    assert "evidence/tests.json cannot be read" in err


def test_a_new_failure_of_the_engine_s_tests_is_refused(ready):
    new = {
        "test": "tests/test_core.py::test_x",
        "kind": "new failure",
        "base": "passed",
        "patched": "crashed",
        "detail": "SIGSEGV",
    }
    change(ready.series() / "evidence/tests.json", changes=[new])
    assert "tests/test_core.py::test_x crashed with the series and passed without it" in refused(ready)


def test_tests_that_were_named_and_not_run_are_listed(ready):
    edit(ready, 'upstream_tests = ["tests/test_core.py"]', 'upstream_tests = ["tests/test_core.py", "tests/test_more.py"]')
    assert "upstream tests that no result is of: tests/test_more.py" in refused(ready)


def test_a_template_that_changed_is_named_heading_by_heading(ready):
    text = TEMPLATE.replace("## Claims", "## Claims and Risks").replace("## Validation", "## Validation\n\n## Rollback")
    ready.upstream.git("tag", "-d", "v2.0")
    ready.release({".github/PULL_REQUEST_TEMPLATE.md": text})
    err = refused(ready)
    assert "heading 'Claims and Risks' is new; heading 'Rollback' is new; heading 'Claims' is gone" in err
    assert "Say there what goes where" in err


def test_without_a_template_in_the_source_the_headings_come_from_rules_and_the_page_says_so(ready):
    ready.upstream.git("tag", "-d", "v2.0")
    ready.release({".github/PULL_REQUEST_TEMPLATE.md": None})
    assert ready.asks(*PR)[0] == 0
    page = (ready.series() / "PR.md").read_text()
    assert "Template: upstream/rules.toml, read 2026-12-04" in page
    assert "the source of vllm-2.0 has no .github/PULL_REQUEST_TEMPLATE.md" in page
    assert page.index("## Overview") < page.index("## Claims") < page.index("## Validation") < page.index("## Details")


def test_a_patch_that_is_too_long_to_review_is_refused_and_tests_do_not_count(ready):
    assert "can be read in one go" not in ready.asks(*PR)[2]
    port = next((ready.series() / "ports/2.0").glob("*.patch"))
    text = port.read_text()
    hunk = "@@ -27,7 +27,7 @@"
    assert hunk in text
    long = text.replace(hunk, "@@ -27,7 +27,157 @@").replace("+thirty\n", "+thirty\n" + "+more\n" * 150)
    port.write_text(long)
    assert "changes 152 lines outside tests, at most 150" in refused(ready)
    port.write_text(text.replace("@@ -0,0 +1,3 @@", "@@ -0,0 +1,203 @@").replace("+x = 1\n", "+x = 1\n" + "+x = 1\n" * 200))
    assert "lines outside tests" not in ready.asks(*PR)[2]


def test_a_series_that_was_rejected_is_not_sent(ready):
    edit(ready, 'status = "draft"', 'status = "rejected"')
    assert "status is rejected: there is nothing to send" in refused(ready)


@pytest.fixture
def identity(ready, tmp_path, monkeypatch):
    """The submitter's git settings, empty at first."""
    file = tmp_path / ".gitconfig"
    file.write_text("")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "nothing"))
    monkeypatch.chdir(tmp_path)
    return file


def fill_in(person):
    edit(person, 'ai_assistance = ""', f'ai_assistance = "I used none."\nduplicates_checked = {TODAY}')


def own_clone(person, tmp_path):
    own = Repository(tmp_path / "own")
    own.git("clone", "--quiet", str(person.upstream.path), ".")
    return own


def test_a_branch_carries_the_submitter_s_name_and_sign_off(ready, identity, tmp_path):
    fill_in(ready)
    identity.write_text("[user]\n\tname = Ada Real\n\temail = ada@real.net\n")
    own = own_clone(ready, tmp_path)
    state = own.state()
    code, out, err = ready.asks(*PR, "--branch", "faster", "--tree", str(own.path))
    assert code == 0, err
    assert "by Ada Real <ada@real.net>" in out
    assert own.state() == state, "the checkout was touched"
    assert own.git("log", "--format=%an <%ae>|%cn", "v2.0..faster") == "Ada Real <ada@real.net>|Ada Real"
    message = own.git("log", "-1", "--format=%B", "faster")
    assert message.startswith("[Kernel] Faster core\n\nIt is slow.")
    assert message.endswith("\n\nSigned-off-by: Ada Real <ada@real.net>")
    assert own.git("show", "faster:engine/core.py").splitlines()[29] == "thirty"
    page = (ready.series() / "PR.md").read_text()
    assert "I used none." in page
    assert f"searched again by the submitter on {TODAY}" in page
    code, _, err = ready.asks(*PR, "--branch", "faster", "--tree", str(own.path))
    assert code == 1
    assert "has a branch faster already" in err


def test_a_branch_in_the_harness_s_repository_says_that_it_cannot_be_pushed_as_it_is(ready, identity):
    fill_in(ready)
    identity.write_text("[user]\n\tname = Ada Real\n\temail = ada@real.net\n")
    code, _, err = ready.asks(*PR, "--branch", "faster")
    assert code == 0
    assert "make it in a clone of yours with --tree" in err


@pytest.mark.parametrize(
    "settings", ["", "[user]\n\tname = Ada\n", "[user]\n\tname = Ada\n\temail = ada@localhost\n"], ids=["none", "name", "host"]
)
def test_a_branch_is_refused_without_a_real_identity(ready, identity, tmp_path, settings):
    fill_in(ready)
    identity.write_text(settings)
    own = own_clone(ready, tmp_path)
    code, _, err = ready.asks(*PR, "--branch", "faster", "--tree", str(own.path))
    assert code == 1
    assert "carries your name and your sign-off" in err
    assert own.git("branch", "--list", "faster") == ""


def test_a_branch_is_refused_until_the_submitter_has_filled_in_their_fields(ready, identity):
    identity.write_text("[user]\n\tname = Ada Real\n\temail = ada@real.net\n")
    code, _, err = ready.asks(*PR, "--branch", "faster")
    assert code == 1
    assert "ai_assistance: whether and how AI assistance was used" in err
    assert "duplicates_checked: the date of your own search, at most 14 days ago (it is None)" in err
    old = TODAY - datetime.timedelta(days=15)
    edit(ready, 'ai_assistance = ""', f'ai_assistance = "None."\nduplicates_checked = {old}')
    code, _, err = ready.asks(*PR, "--branch", "faster")
    assert code == 1
    assert "ai_assistance" not in err
    assert f"(it is {old})" in err


def test_a_clone_without_the_release_is_told_to_fetch_its_tag(ready, identity, tmp_path):
    fill_in(ready)
    identity.write_text("[user]\n\tname = Ada Real\n\temail = ada@real.net\n")
    own = own_clone(ready, tmp_path)
    own.git("tag", "-d", "v2.0")
    code, _, err = ready.asks(*PR, "--branch", "faster", "--tree", str(own.path))
    assert code == 1
    assert "has no tag v2.0" in err
