"""Keeps a benchmark script imported and forks once for each run. Executed by the arm's Python, with nothing of the harness.

Importing an engine takes 10 s and more of CPU, twice as long as what a client measures, and in live mode the client's import
is not what is compared. Each run is still a process of its own that executes the engine's script from its beginning.

Usage: python client_host.py REQUEST_FD REPLY_FD MODULE [ARGUMENT ...]: the arguments make the script print its help, so that
it imports what it needs. A request is a JSON line {"arguments": [...], "directory": ..., "log": ...}; the replies are
{"ready": true} once, then for each request {"pid": ...} and {"code": ...}.
"""

from __future__ import annotations

import gc
import json
import os
import runpy
import sys
import traceback
from typing import Any


def _script(module: str, arguments: list[str]) -> int:
    """What `python -m MODULE` does with these arguments; its exit code."""
    sys.argv = [module, *arguments]
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as leave:
        if leave.code is None or isinstance(leave.code, int):
            return leave.code or 0
        print(leave.code, file=sys.stderr)
        return 1
    except BaseException:  # noqa: BLE001 -- the last frame of a forked process
        traceback.print_exc()
        return 1
    return 0


def _run(module: str, request: dict[str, Any]) -> None:
    """The forked process: never returns."""
    os.chdir(request["directory"])
    log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    code = _script(module, request["arguments"])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def main() -> None:
    requests = os.fdopen(int(sys.argv[1]), encoding="utf-8")
    replies = os.fdopen(int(sys.argv[2]), "w", encoding="utf-8", buffering=1)
    module, arguments = sys.argv[3], sys.argv[4:]

    def reply(**fields: object) -> None:
        replies.write(json.dumps(fields) + "\n")

    # Printing its help makes the engine import all that the script needs. By descriptor, because vLLM's log handler keeps the
    # stream that it finds now: each run then puts its log behind the same one.
    kept = os.dup(1)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    code = _script(module, arguments)
    sys.stdout.flush()
    os.dup2(kept, 1)
    os.close(kept)
    os.close(nowhere)
    if code != 0:
        sys.exit(code)
    # The children share these objects' memory as long as nobody touches their counts.
    gc.collect()
    gc.freeze()
    reply(ready=True)
    for line in requests:
        pid = os.fork()
        if pid == 0:
            _run(module, json.loads(line))
        reply(pid=pid)
        _, status = os.waitpid(pid, 0)
        reply(code=os.waitstatus_to_exitcode(status))


main()
