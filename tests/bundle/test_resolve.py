"""What is carried, what the host gives, what is left out, and the tables behind it."""

from __future__ import annotations

from pathlib import Path

import pytest
from bundle_fakes import make_wheel

from harness.arms.install import locked_packages
from harness.bundle.resolve import choose
from harness.bundle.select import ANY_VERSION, LEFT_OUT, PINNED, dropped, from_the_host, left_out
from harness.bundle.target import Target
from harness.errors import BundleError
from harness.paths import Paths

ENGINE = ("engine", "1.0")


class Wheels:
    """Wheels by name, made when the test says what they require; `asked` are those that were looked at."""

    def __init__(self, folder: Path, **requires: tuple[str, ...]) -> None:
        self.folder, self.requires, self.asked = folder, requires, set()

    def __call__(self, name: str, version: str) -> Path:
        self.asked.add(name)
        return make_wheel(self.folder, name, version, requires=self.requires.get(name.replace("-", "_"), ()))


def test_only_what_the_engine_reaches_is_carried(tmp_path: Path):
    wheels = Wheels(tmp_path, engine=("Alpha_X>=2", "beta; python_version < '3'", "gamma; extra == 'more'"), alpha_x=("delta",))
    choice = choose(
        ENGINE, {"alpha-x": "2.5", "beta": "1", "gamma": "1", "delta": "4", "unused": "9"}, Target("3.12", "9.0", {}), wheels
    )
    assert {name: version for name, (version, _) in choice.carried.items()} == {"engine": "1.0", "alpha-x": "2.5", "delta": "4"}
    assert wheels.asked == {"engine", "alpha-x", "delta"}


def test_extras_bring_what_they_ask_for(tmp_path: Path):
    wheels = Wheels(tmp_path, engine=("web[standard]",), web=("server; extra == 'standard'", "docs; extra == 'doc'"))
    choice = choose(ENGINE, {"web": "1", "server": "2", "docs": "3"}, Target("3.12", "9.0", {}), wheels)
    assert set(choice.carried) == {"engine", "web", "server"}


def test_the_host_gives_what_satisfies_every_carried_distribution(tmp_path: Path):
    wheels = Wheels(tmp_path, engine=("good>=1", "old>=3", "late"), old=("late<2",))
    have = {"good": "1.5", "old": "2.0", "late": "2.1", "torch": "2.11.0"}
    choice = choose(ENGINE, {"good": "1.2", "old": "3.1", "late": "1.9"}, Target("3.12", "9.0", have), wheels)
    # `late` was the host's until `old`, carried, asked for less than 2
    assert {name: version for name, (version, _) in choice.carried.items()} == {"engine": "1.0", "old": "3.1", "late": "1.9"}
    assert choice.host == {"good": "1.5"}


def test_tables_decide_before_the_metadata(tmp_path: Path):
    wheels = Wheels(tmp_path, engine=("torch==2.11.0", "transformers>=5", "numpy<2.4", "tilelang", "nvidia-cutlass-dsl[cu13]"))
    have = {"transformers": "5.17.0", "numpy": "2.5.2"}
    choice = choose(ENGINE, {"transformers": "5.8.1", "torch": "2.11.0"}, Target("3.12", "9.0", have), wheels)
    assert choice.carried["transformers"][0] == "5.8.1"
    assert choice.host == {"torch": "==2.11.0", "numpy": "2.5.2"}
    assert set(choice.left_out) == {"tilelang", "nvidia-cutlass-dsl"}


def test_a_line_that_the_list_lacks_is_named(tmp_path: Path):
    wheels = Wheels(tmp_path, engine=("missing-one",))
    with pytest.raises(BundleError, match="missing-one is needed by engine"):
        choose(ENGINE, {}, Target("3.12", "9.0", {}), wheels)


@pytest.mark.parametrize("damage", [b"", b"PK\x05\x06" + bytes(18), b"no zip at all"])
def test_a_damaged_wheel_is_named(tmp_path: Path, damage: bytes):
    path = tmp_path / "engine-1.0-py3-none-any.whl"
    path.write_bytes(damage)
    with pytest.raises(BundleError, match=r"engine-1\.0-py3-none-any\.whl"):
        choose(ENGINE, {}, Target("3.12", "9.0", {}), lambda _name, _version: path)


def test_the_host_stack_is_torch_and_nvidias_libraries_and_not_their_kernels():
    given = (
        "torch",
        "triton",
        "torchvision",
        "nvidia-cublas",
        "nvidia-cuda-runtime",
        "nvidia-cudnn-cu13",
        "nvidia-nccl-cu13",
        "cuda-bindings",
    )
    carried = (
        "nvidia-cutlass-dsl",
        "nvidia-cudnn-frontend",
        "torch-memory-saver",
        "torch-c-dlpack-ext",
        "nvidia-ml-py",
        "cuda-tile",
    )
    assert all(from_the_host(name) for name in given)
    assert not any(from_the_host(name) for name in carried)


def test_rules_for_files_look_at_distribution_path_and_gpu():
    fa2 = "vllm/vllm_flash_attn/_vllm_fa2_C.abi3.so"
    assert dropped("vllm", fa2, 9) is not None
    assert dropped("vllm", fa2, 8) is None  # an Ampere GPU runs it
    assert dropped("other", fa2, 9) is None
    assert dropped("vllm", "vllm/vllm_flash_attn/_vllm_fa3_C.abi3.so", 9) is None
    assert dropped("any", "lib/libcutlass.a", 9) is not None
    assert dropped("sglang-kernel", "sgl_kernel/sm90/common_ops.abi3.so", 9) is None
    assert dropped("sglang-kernel", "sgl_kernel/sm90/common_ops.abi3.so", 10) is not None


def test_the_locked_lists_pin_what_the_tables_rely_on():
    requirements = Paths.of().requirements
    lists = {
        name: locked_packages(requirements / f"{name}-cuda.txt")
        for name in ("vllm-0.24.0", "sglang-0.5.14", "flashinfer-0.6.12")
    }
    assert all(
        one["torch"] == "2.11.0" and one["triton"] == "3.6.0" and one["apache-tvm-ffi"] == "0.1.9" for one in lists.values()
    )
    for name in PINNED:
        assert len({one[name] for one in lists.values() if name in one}) == 1, f"the engines cannot share {name}"
    assert lists["vllm-0.24.0"]["flashinfer-python"] == lists["sglang-0.5.14"]["flashinfer-python"] == "0.6.12"
    assert lists["sglang-0.5.14"]["sglang-kernel"] == "0.4.4"


def test_no_table_contradicts_another():
    for name in PINNED:
        assert left_out(name) is None
        assert not from_the_host(name)
    assert not set(PINNED) & set(ANY_VERSION)
    assert all(reason for reason in LEFT_OUT.values())
