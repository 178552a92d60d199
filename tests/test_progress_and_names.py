"""Times as people read them, and help for names that do not exist."""

from __future__ import annotations

import io

import pytest

from harness.names import nearest
from harness.progress import Progress, duration


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.04, "0.0 s"),
        (1.26, "1.3 s"),
        (59.94, "59.9 s"),
        (59.99, "1 min 0 s"),
        (75, "1 min 15 s"),
        (3599.6, "1 h 0 min"),
        (7384, "2 h 3 min"),
    ],
)
def test_durations(seconds, text):
    assert duration(seconds) == text


def test_quiet_progress_still_warns():
    stream = io.StringIO()
    progress = Progress(stream, quiet=True)
    progress.say("a step")
    progress.warn("a fallback")
    assert stream.getvalue() == "warning: a fallback\n"


def test_a_step_that_fails_is_not_called_done():
    stream = io.StringIO()

    def work():
        with Progress(stream).step("unpack"):
            raise ValueError

    with pytest.raises(ValueError):
        work()
    assert "unpack ..." in stream.getvalue()
    assert "done" not in stream.getvalue()


@pytest.mark.parametrize(
    ("name", "known", "text"),
    [
        ("vllm/penalty", ["vllm/penalties", "sglang/decode"], "Did you mean 'vllm/penalties'?"),
        ("zzz", ["b", "a"], "Known: a, b."),
        ("x", [], "There are none yet."),
    ],
)
def test_nearest_names(name, known, text):
    assert nearest(name, known) == text
