"""Templates of all engines: what goes where, and that no part is lost."""

from __future__ import annotations

import itertools
import subprocess
from pathlib import Path

import pytest

from harness.pull_request.template import fill, plain, read_template, template_changes
from harness.series.rules import Part, read_rules
from harness.vocabulary import Engine

RULES = Path(__file__).parents[2] / "upstream" / "rules.toml"


@pytest.fixture
def repository(tmp_path):
    """A repository with one commit of these files; gives its path."""

    def make(files):
        for name, text in files.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text, encoding="utf-8")
        who = ("-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "commit.gpgSign=false")
        for words in (("init", "--quiet"), ("add", "--all"), (*who, "commit", "--quiet", "--allow-empty", "-m", "x")):
            subprocess.run(["git", *words], cwd=tmp_path, check=True)
        return tmp_path

    return make


@pytest.mark.parametrize("engine", list(Engine))
def test_every_part_is_on_the_page_once_and_no_heading_is_alone(engine, repository):
    page = read_rules(RULES, engine).page
    template = read_template(repository({"README.md": "x\n"}), "HEAD", page, "the pin")
    assert not template.own
    assert template_changes(template, page) == ()
    text = fill(template, page, {part: f"<{part}>" for part in Part})
    assert [text.count(f"<{part}>") for part in Part] == [1] * len(Part)
    lines = [line for line in text.splitlines() if line]
    assert not any(one.startswith("## ") and other.startswith("## ") for one, other in itertools.pairwise(lines))
    assert not lines[-1].startswith("## ")


def test_comments_go_and_the_rest_of_the_template_stays_where_it_was(repository):
    page = read_rules(RULES, Engine.SGLANG).page
    headings = [section.heading for section in page.sections]
    text = "<!-- a\nb -->\n" + "\n".join(f"## {heading}\n\n<!-- hint -->\n" for heading in headings) + "\n- [ ] formatted\n"
    template = read_template(repository({page.template: text}), "HEAD", page, "the pin")
    assert template_changes(template, page) == ()
    filled = fill(template, page, {part: f"<{part}>" for part in Part})
    assert "hint" not in filled
    assert filled.index(f"## {headings[-1]}") < filled.index("<tests>") < filled.index("- [ ] formatted")


def test_headings_in_another_order_are_a_change(repository):
    page = read_rules(RULES, Engine.VLLM).page
    text = "".join(f"## {section.heading}\n\n" for section in reversed(page.sections))
    template = read_template(repository({page.template: text}), "HEAD", page, "the pin")
    (change,) = template_changes(template, page)
    assert "in another order: Details, Validation, Claims, Overview" in change


def test_a_picture_before_a_heading_makes_no_other_heading():
    assert plain("\N{PUSHPIN} Description") == plain("Description:") == "Description"
    assert plain("Pre-commit Checks") == "Pre-commit Checks"
    assert plain("Benchmark & Profiling") == "Benchmark & Profiling"
