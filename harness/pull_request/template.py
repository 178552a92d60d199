"""The engine's own pull request template: read at the pin where the source has it, else its headings from rules.toml."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.git import git
from harness.series.rules import Page, Part

__all__ = ["Template", "fill", "read_template", "template_changes"]

HEADING = re.compile(r"^(#{1,6})\s+(.*?)\s*$", re.MULTILINE)
COMMENT = re.compile(r"<!--.*?-->\n?", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Template:
    """`text` without comments; `origin` says where it is from, for the page."""

    text: str
    origin: str
    own: bool

    @property
    def headings(self) -> tuple[str, ...]:
        return tuple(plain(match[2]) for match in HEADING.finditer(self.text))


def read_template(repository: Path, commit: str, page: Page, pin: str) -> Template:
    """From the commit of the pin; where its source has no such file (an archive), the headings of rules.toml."""
    listed = git(repository, "ls-tree", "--name-only", commit, "--", page.template).stdout
    if listed:
        text = git(repository, "cat-file", "blob", f"{commit}:{page.template}").stdout
        return Template(COMMENT.sub("", text).strip() + "\n", f"{page.template} of {pin}", own=True)
    # without the template's own text, a section that nothing goes into would be a heading alone
    text = "".join(f"## {section.heading}\n\n" for section in page.sections if section.parts)
    origin = f"upstream/rules.toml, read {page.date} ({page.source}): the source of {pin} has no {page.template}"
    return Template(text, origin, own=False)


def template_changes(template: Template, page: Page) -> tuple[str, ...]:
    """How the template differs from what rules.toml knows of it; nothing can be put in its place where it does."""
    if not template.own:
        return ()
    known = [plain(section.heading) for section in page.sections]
    there = template.headings
    changes = [f"heading {name!r} is new" for name in there if name not in known]
    changes += [f"heading {name!r} is gone" for name in known if name not in there]
    if not changes and [name for name in there if name in known] != known:
        changes.append(f"the headings are in another order: {', '.join(there)}")
    return tuple(changes)


def fill(template: Template, page: Page, parts: Mapping[Part, str]) -> str:
    """The template with the parts below their headings; the rest of it, such as checklists, stays for the submitter."""
    places = {plain(section.heading): section.parts for section in page.sections}
    pieces: list[str] = []
    end = 0
    for match in HEADING.finditer(template.text):
        pieces.append(template.text[end : match.end()].rstrip() + "\n")
        body = _body(parts[part] for part in places.get(plain(match[2]), ()))
        if body:
            pieces.append(f"\n{body}\n")
        end = match.end()
    pieces.append(template.text[end:])
    text = "".join(pieces)
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


def plain(heading: str) -> str:
    """A heading's words: a picture before them makes no other heading of it."""
    return " ".join(re.findall(r"[A-Za-z0-9&-]*[A-Za-z0-9&][A-Za-z0-9&-]*", heading))


def _body(texts: Iterable[str]) -> str:
    return "\n\n".join(text.strip() for text in texts if text.strip())
