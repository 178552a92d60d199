"""Help for a name that does not exist."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = ["nearest"]


def nearest(name: str, known: Iterable[str]) -> str:
    """A sentence for an error message: the nearest known names, else all of them, else that there are none."""
    names = sorted(known)
    if not names:
        return "There are none yet."
    close = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    if close:
        return "Did you mean " + " or ".join(repr(one) for one in close) + "?"
    return "Known: " + ", ".join(names) + "."
