"""Records are made by real interpreters with the real recorder; the engine is two small files."""

from __future__ import annotations

import io
import subprocess
import sys
from dataclasses import replace

import pytest

from harness.arms.modules import check_modules, read_records
from harness.arms.overlay import build_arm
from harness.arms.variables import RECORD_VARIABLE, arm_environment
from harness.git import git
from harness.progress import Progress
from harness.trees.user import user_changes
from harness.vocabulary import GuardState, TreeOrigin
from tests.arms.arm_fakes import make_environment, make_paths, make_tree, sha256, write

CODE = "import vllm, vllm.penalties, vllm._version"


@pytest.fixture
def paths(tmp_path):
    return make_paths(tmp_path)


@pytest.fixture
def arm(paths):
    environment = make_environment(paths)
    return build_arm(paths, "base", (make_tree(paths),), environment, Progress(io.StringIO()))


@pytest.fixture
def run(arm, tmp_path):
    """Run code in a process of the arm; returns the folder with its records."""
    folder = tmp_path / "record"
    folder.mkdir()

    def start(code=CODE, check=True, **variables):
        env = arm_environment(arm, {RECORD_VARIABLE: str(folder)}) | variables
        result = subprocess.run(
            [sys.executable, "-c", code], env=env, cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert not check or result.returncode == 0, result.stderr
        return folder

    return start


def names(folder):
    return {one.name for one in read_records(folder).modules}


def test_modules_of_the_arm_pass_with_links_among_them(arm, run):
    folder = run()
    assert names(folder) == {"vllm", "vllm.penalties", "vllm._version"}
    reading = check_modules(arm, folder)
    assert reading.state is GuardState.PASSED
    assert "3 engine modules in 1 processes" in reading.detail


def test_the_hash_is_of_the_content_that_was_loaded(run):
    found = {one.name: one.sha256 for one in read_records(run()).modules}
    assert found["vllm.penalties"] == sha256("speed = 1\n")


def test_an_edited_file_fires(arm, run):
    write(arm.trees[0].path, {"vllm/penalties.py": "speed = 2\n"})
    reading = check_modules(arm, run())
    assert reading.state is GuardState.FIRED
    assert "vllm/penalties.py" in reading.detail


def test_a_file_of_no_commit_fires(arm, run):
    write(arm.trees[0].path, {"vllm/extra.py": "x = 1\n"})
    reading = check_modules(arm, run("import vllm.extra"))
    assert reading.state is GuardState.FIRED
    assert "vllm/extra.py" in reading.detail
    assert "no commit or link" in reading.detail


def test_another_vllm_that_comes_first_fires(arm, run, tmp_path):
    other = tmp_path / "elsewhere"
    write(other, {"vllm/__init__.py": "name = 'base'\n"})
    first = f"{arm.variables['PYTHONPATH'].split(':')[0]}:{other}:{arm.trees[0].path}"
    reading = check_modules(arm, run("import vllm", PYTHONPATH=first))
    assert reading.state is GuardState.FIRED
    assert str(other) in reading.detail


def test_another_compiled_file_behind_a_link_fires(arm, run):
    link = arm.trees[0].path / "vllm/_version.py"
    target = link.resolve()
    target.write_text("version = 'other'\n")
    assert "vllm/_version.py" in check_modules(arm, run()).detail


def test_no_record_fires(arm, tmp_path):
    assert check_modules(arm, tmp_path / "nothing").state is GuardState.FIRED


def test_processes_without_an_engine_module_fire(arm, run):
    assert check_modules(arm, run("import json")).state is GuardState.FIRED


def test_a_record_that_is_no_json_fires(arm, run):
    folder = run()
    (folder / "1.jsonl").write_text("{}\nnot json\n")
    assert "1.jsonl" in check_modules(arm, folder).detail


def test_a_line_that_a_kill_cut_off_is_ignored(arm, run):
    folder = run()
    (folder / "1.jsonl").write_text('{"name": "vll')
    assert check_modules(arm, folder).state is GuardState.PASSED


@pytest.mark.parametrize(
    "end", ["import os; os._exit(0)", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"], ids=["exit", "SIGKILL"]
)
def test_nothing_is_lost_when_a_process_ends_at_once(run, end):
    assert "vllm.penalties" in names(run(f"{CODE}; {end}", check=False))


def test_children_record_too(run):
    code = (
        "import os, subprocess, sys\n"
        "subprocess.run([sys.executable, '-c', 'import vllm.penalties'], check=True)\n"
        "if os.fork() == 0:\n    import vllm.old\n    os._exit(0)\n"
        "os.wait()\n"
    )
    folder = run(code)
    records = {file: file.read_text() for file in folder.glob("*.jsonl")}
    assert len(records) == 3
    assert names(folder) == {"vllm", "vllm.penalties", "vllm.old"}


def test_spawned_workers_record_too(run, tmp_path):
    (tmp_path / "main.py").write_text(
        "import multiprocessing as mp\ndef work():\n    import vllm.penalties\n"
        "if __name__ == '__main__':\n    p = mp.get_context('spawn').Process(target=work)\n    p.start()\n    p.join()\n"
    )
    assert "vllm.penalties" in names(run("import runpy; runpy.run_path('main.py', run_name='__main__')"))


def test_the_sitecustomize_that_was_there_still_runs(arm, run, tmp_path):
    write(tmp_path / "users", {"sitecustomize.py": "import builtins\nbuiltins.users_own = 1\n"})
    first, *rest = arm.variables["PYTHONPATH"].split(":")
    path = ":".join([first, str(tmp_path / "users"), *rest])
    folder = run("import vllm, sitecustomize; assert users_own == 1; assert 'users' in sitecustomize.__file__", PYTHONPATH=path)
    assert names(folder) == {"vllm"}


def test_without_the_variable_nothing_is_recorded_or_slowed(arm, tmp_path):
    code = "import sys; assert not any(type(one).__name__ == 'Recorder' for one in sys.meta_path)"
    subprocess.run([sys.executable, "-c", code], env=arm_environment(arm, {}), cwd=tmp_path, check=True)


def test_a_folder_that_cannot_be_written_does_not_stop_the_engine(run):
    run(CODE, **{RECORD_VARIABLE: "/nowhere/at/all"})


def test_a_checkout_that_changes_during_the_run_fires(paths, run, arm):
    tree = arm.trees[0]
    write(tree.path, {"vllm/penalties.py": "speed = 7\n"})
    own = replace(tree, origin=TreeOrigin.PATH, changes=user_changes(tree.path))
    checkout = replace(arm, trees=(own,))
    folder = run()
    assert check_modules(checkout, folder).state is GuardState.PASSED
    write(tree.path, {"vllm/penalties.py": "speed = 8\n"})
    assert "was changed while it was measured" in check_modules(checkout, folder).detail


def test_a_patched_module_is_checked_against_the_patched_commit(paths, tmp_path):
    environment = make_environment(paths)
    tree = make_tree(paths, {"vllm/penalties.py": "speed = 5\n"}, "vllm/fast")
    patched = build_arm(paths, "patched", (tree,), environment, Progress(io.StringIO()))
    folder = tmp_path / "patched-record"
    folder.mkdir()
    env = arm_environment(patched, {RECORD_VARIABLE: str(folder)})
    subprocess.run([sys.executable, "-c", CODE], env=env, cwd=tmp_path, check=True)
    assert check_modules(patched, folder).state is GuardState.PASSED
    git(tree.path, "checkout", "--quiet", tree.base)
    subprocess.run([sys.executable, "-c", CODE], env=env, cwd=tmp_path, check=True)
    assert "vllm/penalties.py" in check_modules(patched, folder).detail
