"""Write PR.md of a series, on the engine's own template, or say everything that is missing for it.

  nox -s pr -- vllm/NAME                       write patches/vllm/NAME/PR.md
  nox -s pr -- vllm/NAME --check               write nothing; fail when something is missing or PR.md is not current
  nox -s pr -- --check                         the same for every series that is called ready
  nox -s pr -- vllm/NAME --branch my-topic     and make the branch, in the engine's repository of the harness
  nox -s pr -- vllm/NAME --branch my-topic --tree ~/vllm
                                               in a clone of your own, from where it can be pushed

The page is for the head pin: its template, the series' port to it. What no file has (number for the title, layered claim,
exactness, reproduction, evaluations) stands in the table [pr] of series.toml; a series without one is told its fields. Every
evidence file must be of the commit and the device that the series names. The AI statement and the date of a search for
duplicates are the submitter's; a branch needs both, and carries the name and the sign-off that the submitter's git knows. The
engine's own linters run on the head pin too (as `nox -s check -- --lint` does).
"""

from __future__ import annotations

import argparse
import datetime
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from harness.context import Context
from harness.vocabulary import ExitCode, SeriesStatus, Source

if TYPE_CHECKING:
    from harness.pull_request.page import Subject
    from harness.series.model import Series

__all__ = ["configure", "main"]

RECENT = 14  # days that a search for duplicates is good for


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "series", nargs="?", metavar="ENGINE/NAME", help="the series (with --check, default: all that are ready)"
    )
    parser.add_argument("--check", action="store_true", help="write nothing; fail when PR.md is missing or not current")
    parser.add_argument("--no-lint", action="store_true", help="do not run the engine's linters; the page says so")
    parser.add_argument("--branch", metavar="NAME", help="make a signed-off branch of that name at the head pin")
    parser.add_argument("--tree", type=Path, metavar="PATH", help="the clone of your own that gets the branch")
    parser.add_argument("--mirror", type=Path, metavar="PATH", help="a local git repository of the engine to take the pin from")
    parser.add_argument(
        "--source", type=Source, choices=list(Source), help="take the pin only from git, or only from the archive"
    )


def main(args: argparse.Namespace, context: Context) -> ExitCode:
    from harness.errors import UsageError  # noqa: PLC0415 - keeps --help quick
    from harness.series.reader import list_series, read_series  # noqa: PLC0415

    if args.tree and not args.branch:
        raise UsageError("--tree goes with --branch")
    if args.check:
        names = [args.series] if args.series else list_series(context.paths)
        chosen = [read_series(context.paths, name) for name in names]
        return _check(args, context, [one for one in chosen if args.series or one.status is SeriesStatus.READY])
    if not args.series:
        raise UsageError("name a series, or check all that are ready with --check")
    return _write(args, context, read_series(context.paths, args.series))


def _write(args: argparse.Namespace, context: Context, series: Series) -> ExitCode:
    from harness.errors import PullRequestError  # noqa: PLC0415
    from harness.files import write_atomically  # noqa: PLC0415
    from harness.pull_request.page import render_page, title_of  # noqa: PLC0415

    subject, base = _subject(args, context, series)
    file = series.directory / "PR.md"
    today = datetime.datetime.now(tz=datetime.UTC).date()
    write_atomically(file, render_page(subject, today), PullRequestError)
    print(f"title  {title_of(series, subject.notes)}")
    print(f"page   {file}")
    print(f"template  {subject.template.origin}")
    if args.branch:
        _branch(args, context, subject, base, today)
    return ExitCode.OK


def _check(args: argparse.Namespace, context: Context, chosen: Sequence[Series]) -> ExitCode:
    from harness.errors import UpkernelError  # noqa: PLC0415
    from harness.pull_request.page import render_page  # noqa: PLC0415

    failed = 0
    for series in chosen:
        file = series.directory / "PR.md"
        old = file.read_text(encoding="utf-8") if file.is_file() else ""
        try:
            subject, _ = _subject(args, context, series)
        except UpkernelError as error:  # one that is not ready must not hide another
            print(error)
            failed += 1
            continue
        if _undated(old) == _undated(render_page(subject, datetime.datetime.now(tz=datetime.UTC).date())):
            print(f"{series.id}: nothing is missing, PR.md is current")
        else:
            print(f"{file} is not what series.toml and evidence/ say now: `nox -s pr -- {series.id}` writes it")
            failed += 1
    print(f"{len(chosen)} series: {failed} not ready for a pull request")
    return ExitCode.ERROR if failed else ExitCode.OK


def _subject(args: argparse.Namespace, context: Context, series: Series) -> tuple[Subject, str]:
    from harness.errors import PullRequestError  # noqa: PLC0415
    from harness.linters.series import lint_on_pin  # noqa: PLC0415
    from harness.pins.reader import read_pins  # noqa: PLC0415
    from harness.pull_request.evidence import gather  # noqa: PLC0415
    from harness.pull_request.missing import missing  # noqa: PLC0415
    from harness.pull_request.page import Subject  # noqa: PLC0415
    from harness.pull_request.template import Template, read_template  # noqa: PLC0415
    from harness.series.lock import read_lock  # noqa: PLC0415
    from harness.series.rules import read_rules  # noqa: PLC0415
    from harness.trees.repository import repository  # noqa: PLC0415
    from harness.trees.worktrees import base_of  # noqa: PLC0415

    paths = context.paths
    head = read_pins(paths.pins_file).find(series.engine, "head")
    rules = read_rules(paths.root / "upstream" / "rules.toml", series.engine)
    base = base_of(paths, head, progress=context.progress, mirror=args.mirror, source=args.source)
    lock = read_lock(paths.lock_file)
    gathered = gather(series, lock)
    template = Template("", "", own=False)
    if rules.page is not None:
        template = read_template(repository(paths, series.engine), base.commit, rules.page, head.name)
    lacking = missing(series, head, rules, template, gathered)
    if not args.no_lint and head.version in {series.pin, *series.ports}:
        found = lint_on_pin(paths, series, head, rules, context.progress, mirror=args.mirror, source=args.source)
        lacking += tuple(f"{head.name}, {file}: {message}" for file, message in found)
    if lacking or series.pr is None or rules.page is None:
        lines = "".join(f"\n  - {one}" for one in lacking)
        raise PullRequestError(f"{series.id} is not ready for a pull request; {len(lacking)} things are missing:{lines}")
    tips = tuple((pin, str(source), tip) for (name, pin, source), tip in sorted(lock.tips.items()) if name == series.id)
    linted = not args.no_lint
    return Subject(series, series.pr, head, rules, rules.page, template, gathered, tips, linted), base.commit


def _branch(args: argparse.Namespace, context: Context, subject: Subject, base: str, today: datetime.date) -> None:
    from harness.errors import PullRequestError  # noqa: PLC0415
    from harness.pull_request.branch import make_branch, submitter  # noqa: PLC0415
    from harness.series.apply import stack_patches  # noqa: PLC0415
    from harness.trees.repository import locked, repository, resolve  # noqa: PLC0415

    notes, head = subject.notes, subject.head
    checked = notes.duplicates_checked
    unfilled = [] if notes.ai_assistance else ["ai_assistance: whether and how AI assistance was used, in your own words"]
    if checked is None or not datetime.timedelta() <= today - checked <= datetime.timedelta(days=RECENT):
        unfilled.append(f"duplicates_checked: the date of your own search, at most {RECENT} days ago (it is {checked})")
    if unfilled:
        raise PullRequestError(
            "the submitter has to fill in [pr] of series.toml first:" + "".join(f"\n  - {one}" for one in unfilled)
        )
    own = args.tree.expanduser().resolve() if args.tree else None
    who = submitter(own or Path.cwd())
    patches = stack_patches(subject.series, head.version)
    if own is not None:
        below = resolve(own, f"refs/tags/{head.tag}")
        if below is None:
            raise PullRequestError(
                f"{own} has no tag {head.tag}, which {head.name} is: `git fetch --tags` the engine's repository there"
            )
        tip = make_branch(own, args.branch, below, patches, who)
        print(f"branch {args.branch} in {own}: {tip}, by {who}")
        return
    with locked(context.paths, head.engine, context.progress):
        repo = repository(context.paths, head.engine)
        tip = make_branch(repo, args.branch, base, patches, who)
    print(f"branch {args.branch} in {repo}: {tip}, by {who}")
    context.progress.warn(
        "it stands on the harness's own copy of the release, which may lack upstream's history; to push, make it in a clone of "
        "yours with --tree"
    )


def _undated(page: str) -> str:
    """The page without the day on which it was written."""
    first, _, rest = page.partition("\n")
    return first.partition("` on ")[0] + rest
