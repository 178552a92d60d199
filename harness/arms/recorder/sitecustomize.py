"""Writes down every engine module that this process finds, at the moment it is found. Runs in each process of a run.

Python imports `sitecustomize` at start-up from the first folder of PYTHONPATH, and children inherit that. Lines go to
$UPKERNEL_MODULE_RECORD/PID.jsonl one by one, so nothing is lost to fork, os._exit or SIGKILL. Standard library only, and
no import beyond what the interpreter has loaded, until there is something to write: small helper processes run this too.
"""
# ruff: noqa: INP001, PLC0415, PTH100, PTH120, PTH123 -- not a package; late imports and os.path are for quick starts

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

VARIABLE = "UPKERNEL_MODULE_RECORD"
PACKAGES = frozenset({"flashinfer", "sgl_kernel", "sglang", "upkernel", "vllm"})


def _write(folder: str, entry: Mapping[str, object]) -> None:
    import json

    line = (json.dumps(entry) + "\n").encode()
    try:
        # Opened for each line: the process id changes with a fork, and a kept descriptor could be closed and reused.
        descriptor = os.open(f"{folder}/{os.getpid()}.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        try:
            os.write(descriptor, line)
        finally:
            os.close(descriptor)
    except OSError as error:
        # The engine must not fail for it.
        print(f"upkernel: cannot record {entry}: {error}", file=sys.stderr)


def _sha256(path: str) -> str | None:
    import hashlib

    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return None


class Recorder:
    """A finder that asks the finders after it, and writes down what they found."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name.partition(".")[0] not in PACKAGES:
            return None
        for finder in sys.meta_path:
            if finder is self or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                self.record(name, spec)
                return spec
        return None

    def record(self, name: str, spec: ModuleSpec) -> None:
        if spec.has_location and spec.origin:
            _write(self.folder, {"name": name, "path": os.path.abspath(spec.origin), "sha256": _sha256(spec.origin)})
        else:
            # A folder without __init__.py has no file to hash, but where it lies counts.
            for place in spec.submodule_search_locations or ():
                _write(self.folder, {"name": name, "path": os.path.abspath(place), "sha256": ""})


def _run_hidden() -> None:
    """Run the sitecustomize that this one hides, the user's or the system's; the name is then its own."""
    here = os.path.dirname(os.path.abspath(__file__))
    before = sys.path[:]
    ours = sys.modules.pop("sitecustomize", None)
    sys.path[:] = [place for place in before if os.path.abspath(place or os.curdir) != here]
    hidden = sys.path[:]
    try:
        __import__("sitecustomize")
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
    finally:
        # It may have changed the path; keep that.
        sys.path[:] = before if sys.path == hidden else sys.path
        if ours is not None:
            sys.modules.setdefault("sitecustomize", ours)


_folder = os.environ.get(VARIABLE)
if _folder:
    _write(_folder, {"process": os.getpid(), "executable": sys.executable, "arguments": sys.orig_argv})
    sys.meta_path.insert(0, Recorder(_folder))
_run_hidden()
