"""What goes into a kit and what does not: tables, each line with its reason, and nothing decided elsewhere."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fnmatch import fnmatchcase

__all__ = [
    "ANY_VERSION",
    "DROPPED",
    "HOST_STACK",
    "LEFT_OUT",
    "PINNED",
    "TESTS",
    "DropRule",
    "dropped",
    "from_the_host",
    "left_out",
    "normalised",
]

# ---------------------------------------------------------------- whole distributions

# Never carried: gigabytes that a host with a GPU has, built for its driver. Name patterns, as the index compares names.
HOST_STACK = (
    "torch",
    "torchaudio",
    "torchvision",
    "triton",
    "cuda-toolkit",
    "cuda-bindings",
    "cuda-core",
    "cuda-pathfinder",
    "nvidia-cuda-*",
    "nvidia-cublas",
    "nvidia-cudnn-cu*",
    "nvidia-cufft",
    "nvidia-cufile",
    "nvidia-curand",
    "nvidia-cusolver",
    "nvidia-cusparse*",
    "nvidia-nccl-*",
    "nvidia-nvjitlink",
    "nvidia-nvshmem-*",
    "nvidia-nvtx",
    "nvidia-nvvm",
)

# Required by an engine's metadata, but imported only for features that no workload here uses. Pattern -> reason.
LEFT_OUT = {
    "flashinfer-cubin": "cubins of Blackwell kernels, 200 MB",
    "tilelang": "DeepSeek sparse attention and mHC kernels",
    "z3-solver": "of tilelang",
    "nvidia-cutlass-dsl*": "CuTe DSL kernels of Blackwell; FA4",
    "flash-attn-4": "Blackwell attention",
    "quack-kernels": "CuTe DSL kernels",
    "tokenspeed-*": "Blackwell MLA",
    "humming-kernels": "weight-only quantisation kernels compiled on demand",
    "nvidia-cudnn-frontend": "cuDNN attention",
    "nvidia-mathdx": "Blackwell GEMMs compiled on demand",
    "cuda-tile": "cuTile kernels of Blackwell",
    "cuda-python": "CuTe DSL and cuDNN kernels",
    "sgl-deep-gemm": "FP8 block GEMMs of MoE models",
    "opentelemetry-*": "tracing",
    "googleapis-common-protos": "tracing",
    "anthropic": "another API's server",
    "mcp": "tool servers",
    "lm-format-enforcer": "structured output other than xgrammar",
    "outlines": "structured output other than xgrammar",
    "outlines-core": "structured output other than xgrammar",
    "fastsafetensors": "loading of real weights",
    "depyf": "debugging of torch.compile",
    "opencv-python-headless": "images and video",
    "av": "video",
    "decord2": "video",
    "torchcodec": "video",
    "timm": "vision models",
    "torchao": "torchao quantisation",
    "blobfile": "tokenizers in cloud storage",
    "modelscope": "another model hub",
    "kernels": "kernels fetched from a model hub",
    "py-spy": "debugging",
    "smg-grpc-servicer": "gRPC gateway",
    "numba": "n-gram speculation",
    "sentencepiece": "tokenizers that no synthetic model uses",
    # extras of fastapi[standard]
    "fastapi-cli": "development server",
    "email-validator": "development server",
    "pydantic-settings": "development server",
}

# The host's version serves, whatever the metadata asks for. Name -> why that is known to work.
ANY_VERSION = {
    "numpy": "one interface since 2.0; upper bounds of others (mistral-common) are cautions for models that no workload uses",
    "scipy": "the harness's t interval and permutation test, the same for years; 35 MB",
    "numba": "imported by vLLM's n-gram proposer, which no workload uses; its own range of NumPy follows the host's",
    "setuptools": "vLLM asks for an upper bound for building only",
    "nvidia-ml-py": "NVML bindings",
    "pillow": "imported, not used by text models",
    "protobuf": "imported, not used by text models",
    "timm": "vision models",
    "opencv-python-headless": "imported, not used by text models",
}

# Always the list's version, also where the host's would satisfy the metadata: a host is judged by what it was tested with.
PINNED = {
    "apache-tvm-ffi": "FlashInfer's and our modules are compiled against its headers",
    "tokenizers": "prompts must be the same on every host",
    "transformers": "one version serves vLLM and SGLang; newer ones rename what both import",
    "xgrammar": "both engines import it at start-up",
}

# Added by --with-tests: what the engines' own test files import besides what the engine needs, and what that needs in turn.
# A version given here serves where the engine's locked list has none; with "" the list alone decides.
TESTS = {
    "anthropic": "",  # vLLM's tests/utils.py
    "iniconfig": "2.3.0",
    "pluggy": "1.6.0",
    "pygments": "2.19.2",
    "pytest": "9.1.1",
    "pytest-asyncio": "1.4.0",
    "pytest-timeout": "2.4.0",
    "tblib": "3.2.2",  # vLLM's tests/conftest.py
}


def normalised(name: str) -> str:
    """A distribution's name as the index compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def from_the_host(name: str) -> bool:
    """Whether the host must have this distribution itself."""
    return any(fnmatchcase(name, pattern) for pattern in HOST_STACK)


def left_out(name: str) -> str | None:
    """Why a required distribution is not carried; None when it is."""
    return next((reason for pattern, reason in LEFT_OUT.items() if fnmatchcase(name, pattern)), None)


# ---------------------------------------------------------------- files of distributions


@dataclass(frozen=True, slots=True)
class DropRule:
    """Files of one distribution ("*": of each) that a kit for `major` (None: for any GPU) does not carry."""

    distribution: str
    files: str  # pattern over the whole path, "*" matches "/" too
    major: int | None
    reason: str


DROPPED = (
    DropRule("*", "*.a", None, "static libraries"),
    DropRule("*", "*.lib", None, "static libraries"),
    DropRule("*", "*.pyc", None, "bytecode"),
    # sm_90 runs FlashAttention 3; this one has machine code for sm_80 and PTX only
    DropRule("vllm", "vllm/vllm_flash_attn/_vllm_fa2_C.abi3.so", 9, "FlashAttention 2: a Hopper GPU runs 3"),
    DropRule("vllm", "vllm/_qutlass_C.abi3.so", 9, "MXFP4 on Blackwell only"),
    DropRule("vllm", "vllm/third_party/deep_gemm/*", 9, "FP8 block GEMMs of MoE models"),
    # 1.76 GB, 0.99 GB of it for sm_90: ten parts by itself. SGLang then runs its flashinfer and triton backends.
    DropRule("sglang-kernel", "sgl_kernel/flash_ops.abi3.so", None, "FlashAttention 3 for SGLang: 1 GB"),
    DropRule("sglang-kernel", "sgl_kernel/flashmla_ops.abi3.so", None, "MLA models"),
    DropRule("sglang-kernel", "sgl_kernel/sm100/*", 9, "Blackwell"),
    DropRule("sglang-kernel", "sgl_kernel/sm90/*", 10, "Hopper"),
)


def dropped(distribution: str, path: str, major: int) -> DropRule | None:
    """The rule by which a file stays behind, or None."""
    for rule in DROPPED:
        ours = rule.distribution in {"*", distribution} and rule.major in {None, major}
        if ours and fnmatchcase(path, rule.files):
            return rule
    return None
