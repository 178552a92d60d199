"""Keeps vLLM's command line imported and forks once for each run. Executed by the arm's Python, with nothing of the harness.

Importing vLLM takes 10 s and more of CPU, twice as long as what a client measures, and in live mode the client's import is
not what is compared. Each run is still a process of its own that executes vLLM's script from its beginning.

Usage: python client_host.py REQUEST_FD REPLY_FD. A request is a JSON line {"arguments": [...], "directory": ..., "log": ...};
the replies are {"ready": true} once, then for each request {"pid": ...} and {"code": ...}.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import sys
import traceback
from typing import Any

_COMMAND_LINE = "vllm.entrypoints.cli.main"


def _vllm(arguments: list[str]) -> int:
    """What the `vllm` command does with these arguments; its exit code."""
    sys.argv = ["vllm", *arguments]
    try:
        importlib.import_module(_COMMAND_LINE).main()
    except SystemExit as leave:
        if leave.code is None or isinstance(leave.code, int):
            return leave.code or 0
        print(leave.code, file=sys.stderr)
        return 1
    except BaseException:  # noqa: BLE001 -- the last frame of a forked process
        traceback.print_exc()
        return 1
    return 0


def _run(request: dict[str, Any]) -> None:
    """The forked process: never returns."""
    os.chdir(request["directory"])
    log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    code = _vllm(request["arguments"])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def main() -> None:
    requests = os.fdopen(int(sys.argv[1]), encoding="utf-8")
    replies = os.fdopen(int(sys.argv[2]), "w", encoding="utf-8", buffering=1)

    def reply(**fields: object) -> None:
        replies.write(json.dumps(fields) + "\n")

    # Printing its help makes vLLM import all that the script needs. By descriptor, because vLLM's log handler keeps the stream
    # that it finds now: each run then puts its log behind the same one.
    kept = os.dup(1)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    code = _vllm(["bench", "serve", "--help"])
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
            _run(json.loads(line))
        reply(pid=pid)
        _, status = os.waitpid(pid, 0)
        reply(code=os.waitstatus_to_exitcode(status))


main()
