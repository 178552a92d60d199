"""Entry points that vLLM and SGLang call in each of their processes; they name the backends and import nothing heavy.

vLLM: ``--attention-backend CUSTOM``. SGLang: ``--decode-attention-backend upkernel --prefill-attention-backend fa3``.
Both are re-entrant, because the engines call them in the parent and in every worker.
"""

from __future__ import annotations

from typing import Any

__all__ = ["SGLANG_NAME", "register_sglang", "register_vllm"]

SGLANG_NAME = "upkernel"


def register_vllm() -> None:
    """Entry point of group ``vllm.general_plugins`` (vLLM 0.24.0)."""
    from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend  # noqa: PLC0415

    register_backend(AttentionBackendEnum.CUSTOM, "upkernel.paged_decode.vllm_backend.UpkernelBackend")


def register_sglang() -> None:
    """Entry point of group ``sglang.srt.plugins`` (SGLang 0.5.14)."""
    from sglang.srt.layers.attention.attention_registry import (  # noqa: PLC0415
        ATTENTION_BACKENDS,
        register_attention_backend,
    )
    from sglang.srt.server_args import add_attention_backend_choices  # noqa: PLC0415

    if SGLANG_NAME in ATTENTION_BACKENDS:
        return
    add_attention_backend_choices([SGLANG_NAME])

    @register_attention_backend(SGLANG_NAME)
    def create(runner: Any) -> Any:
        from .sglang_backend import UpkernelBackend  # noqa: PLC0415

        return UpkernelBackend(runner)
