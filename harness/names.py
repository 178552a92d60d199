"""Help for a name that does not exist."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = ["nearest"]

MOST = 20  # names in one message


def nearest(name: str, known: Iterable[str]) -> str:
    """A sentence for an error message: the nearest known names, else all of them, else that there are none."""
    names = sorted(str(one) for one in known)
    if not names:
        return "There are none yet."
    close = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    if close:
        return "Did you mean " + " or ".join(repr(one) for one in close) + "?"
    more = f" and {len(names) - MOST} more" if len(names) > MOST else ""
    return "Known: " + ", ".join(names[:MOST]) + more + "."
