"""Starts a worker. Executed by the arm's Python as a script, with nothing of the repository on its import path.

The folder of this file becomes the package `upkernel_timing`, and the folder of our kernels the package `upkernel`: putting the
checkout on the path would shadow PyPI's package `kernels`, which SGLang and transformers import.

Usage: python worker.py REQUEST_FD REPLY_FD JSON_ARGUMENTS, where the arguments are device, file, and optionally variant (of a
peer file) and kernels (the folder that becomes `upkernel`).
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import sys
from pathlib import Path
from typing import TextIO


def _package(name: str, folder: Path) -> None:
    spec = importlib.util.spec_from_file_location(name, folder / "__init__.py", submodule_search_locations=[str(folder)])
    if spec is None or spec.loader is None:
        raise ImportError(f"{folder} is not a package")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)


def open_pipes(words: list[str]) -> tuple[dict[str, str], TextIO, TextIO]:
    """The arguments, and the pipes for requests and replies."""
    requests = os.fdopen(int(words[0]), encoding="utf-8")
    replies = os.fdopen(int(words[1]), "w", encoding="utf-8")
    return json.loads(words[2]), requests, replies


def main() -> None:
    arguments, requests, replies = open_pipes(sys.argv[1:])
    _package("upkernel_timing", Path(__file__).resolve().parent)
    if "kernels" in arguments:
        _package("upkernel", Path(arguments["kernels"]))
    importlib.import_module("upkernel_timing.serving").serve(arguments, requests, replies)


if __name__ == "__main__":
    main()
