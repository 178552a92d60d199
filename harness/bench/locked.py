"""One experiment at a time on a machine, whatever checkout it is started from."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager

from harness.errors import RunError

__all__ = ["MACHINE_LOCK", "one_experiment"]

MACHINE_LOCK = "\0upkernel-experiment"


@contextmanager
def one_experiment(name: str = MACHINE_LOCK) -> Iterator[None]:
    """Hold the machine. Raises RunError when another experiment runs.

    The lock is an abstract socket name of Linux: it is the machine's, and goes with the process, however that ends.
    """
    with socket.socket(socket.AF_UNIX) as held:
        try:
            held.bind(name)
        except OSError as error:
            raise RunError(
                "another experiment is running on this machine, and each would disturb the other. Wait until it has ended."
            ) from error
        yield
