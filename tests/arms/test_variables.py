from __future__ import annotations

import io
import subprocess
import sys

import pytest

from harness.arms import overlay
from harness.arms.overlay import build_arm
from harness.arms.variables import arm_environment, inherited
from harness.errors import ArmError
from harness.progress import Progress
from tests.arms.arm_fakes import make_environment, make_paths, make_tree


@pytest.fixture
def said():
    return io.StringIO()


@pytest.fixture
def make_arm(tmp_path, said):
    paths = make_paths(tmp_path)
    environment = make_environment(paths)
    tree = make_tree(paths)
    return lambda name="base": build_arm(paths, name, (tree,), environment, Progress(said))


def test_settings_of_the_user_that_would_disturb_are_removed_and_reported(make_arm, said, monkeypatch):
    monkeypatch.setattr(overlay, "_told", set())
    monkeypatch.setenv("VLLM_USE_FOO", "1")
    monkeypatch.setenv("PYTHONPATH", "/somewhere")
    monkeypatch.setenv("EDITOR", "ed")
    env = arm_environment(make_arm(), {})
    assert "VLLM_USE_FOO" not in env
    assert "/somewhere" not in env["PYTHONPATH"]
    assert env["EDITOR"] == "ed"
    make_arm("control")
    assert said.getvalue().count("VLLM_USE_FOO") == 1


@pytest.mark.parametrize(
    "name",
    [
        "OMP_NUM_THREADS",
        "MKL_NUM_THREADS",
        "KMP_AFFINITY",
        "GOMP_CPU_AFFINITY",
        "MALLOC_ARENA_MAX",
        "TORCH_LOGS",
        "TORCHINDUCTOR_MAX_AUTOTUNE",
    ],
)
def test_threads_allocator_and_torch_are_the_workloads_to_set(make_arm, said, monkeypatch, name):
    monkeypatch.setattr(overlay, "_told", set())
    monkeypatch.setenv(name, "7")
    arm = make_arm()
    assert name not in arm_environment(arm, {})
    assert "not passed on to the engines: " in said.getvalue()
    assert name in said.getvalue()
    assert arm_environment(arm, {name: "2"})[name] == "2"


def test_names_that_only_look_alike_are_kept():
    assert inherited({"MY_VLLM_HOME": "", "VLLM_X": "", "PYTHONSTARTUP": "", "OMPI_X": ""}) == ("PYTHONSTARTUP", "VLLM_X")


def test_a_workload_may_add_but_not_change_the_arm(make_arm):
    arm = make_arm()
    assert arm_environment(arm, {"VLLM_CPU_KVCACHE_SPACE": "1"})["VLLM_CPU_KVCACHE_SPACE"] == "1"
    with pytest.raises(ArmError, match="PYTHONHASHSEED"):
        arm_environment(arm, {"PYTHONHASHSEED": "7"})


def test_the_tree_comes_first_and_the_working_directory_nowhere(make_arm, tmp_path):
    arm = make_arm()
    (tmp_path / "vllm.py").write_text("raise SystemExit('the working directory won')\n")
    code = "import vllm; print(vllm.__file__)"
    env = arm_environment(arm, {})
    result = subprocess.run([sys.executable, "-c", code], env=env, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert result.stdout.strip() == str(arm.trees[0].path / "vllm/__init__.py")


def test_bytecode_of_the_tree_is_the_arms_and_of_installed_modules_is_shared(make_arm, tmp_path):
    arms = [make_arm("base"), make_arm("control")]
    for arm in arms:
        code = "import sys; sys.dont_write_bytecode = False; import vllm.penalties, colorsys"
        subprocess.run([sys.executable, "-c", code], env=arm_environment(arm, {}), cwd=tmp_path, check=True)
    shared = arms[0].environment.prefix.parent / "bytecode"
    assert len(list(shared.rglob("colorsys.*.pyc"))) == 1
    assert not list(shared.rglob("penalties.*.pyc"))
    own = [list((tmp_path / "state/arms").glob(f"*/bytecode{arms[0].trees[0].path}/vllm/penalties.*.pyc"))]
    assert [len(one) for one in own] == [2]
    assert not list(arms[0].trees[0].path.rglob("*.pyc"))
