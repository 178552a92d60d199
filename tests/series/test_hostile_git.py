"""Whatever a user's git is set to: base and series give the same tip, and the tip exports to the same bytes."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest

from harness.series.apply import apply_series, build_tip
from harness.series.export import export_patches

from .conftest import numbered

TIP = "fcdade19e26658a82af3fff406fa5298ffff8fe9"

# Each group is set in the system's, the user's (both places), the repository's and the environment's configuration at once.
SETTINGS = {
    "prefixes and context": (
        "diff.noprefix=true",
        "diff.mnemonicPrefix=true",
        "diff.srcPrefix=old/",
        "diff.dstPrefix=new/",
        "diff.relative=true",
        "diff.context=7",
        "diff.interHunkContext=9",
        "diff.suppressBlankEmpty=true",
        "diff.orderFile=/dev/null",
    ),
    "algorithms and renames": (
        "diff.algorithm=patience",
        "diff.indentHeuristic=false",
        "diff.renames=copies",
        "diff.renameLimit=1",
        "diff.colorMoved=zebra",
        "diff.wordRegex=.",
        "diff.wsErrorHighlight=all",
        "diff.ignoreSubmodules=all",
        "diff.submodule=log",
        "diff.dirstat=lines",
        "diff.statGraphWidth=5",
        "merge.renames=false",
        "merge.directoryRenames=true",
    ),
    "programs": (
        "diff.external=false",
        "diff.evil.command=false",
        "diff.evil.textconv=cat /dev/null",
        "diff.evil.xfuncname=^nothing",
        "diff.evil.binary=true",
        "merge.evil.driver=false",
        "merge.default=evil",
        "filter.evil.clean=cat /dev/null",
        "filter.evil.smudge=cat /dev/null",
        "filter.evil.required=true",
        "core.pager=false",
        "pager.format-patch=false",
        "pager.show=false",
        "core.editor=false",
        "sequence.editor=false",
        "interactive.diffFilter=false",
        "core.fsmonitor=false",
        "core.askPass=false",
        "alias.am=!false",
        "alias.format-patch=!false",
    ),
    "headers": (
        "format.subjectPrefix=HOSTILE",
        "format.signOff=true",
        "format.to=someone@example.org",
        "format.cc=someone@example.org",
        "format.headers=X-Hostile: yes",
        "format.thread=shallow",
        "format.from=Somebody Else <else@example.org>",
        "format.encodeEmailHeaders=false",
        "format.signature=hostile",
        "format.signatureFile=/dev/null",
        "format.suffix=.txt",
        "format.filenameMaxLength=9",
        "format.numbered=true",
        "format.coverLetter=true",
        "format.useAutoBase=true",
        "format.notes=true",
        "format.noprefix=true",
        "format.pretty=oneline",
        "format.outputDirectory=/nonexistent",
        "format.mboxrd=true",
        "notes.displayRef=refs/notes/*",
        "log.showSignature=true",
        "log.date=relative",
        "log.decorate=full",
        "log.mailmap=true",
        "log.follow=true",
    ),
    "attachments": ("format.attach=boundary",),
    "identity and signing": (
        "user.name=Hostile",
        "user.email=hostile@example.org",
        "author.name=Hostile",
        "committer.name=Hostile",
        "user.useConfigOnly=true",
        "user.signingKey=nobody",
        "commit.gpgSign=true",
        "tag.gpgSign=true",
        "gpg.program=false",
        "gpg.format=ssh",
    ),
    "messages": (
        "commit.template=/nonexistent",
        "commit.cleanup=scissors",
        "commit.verbose=true",
        "commit.status=false",
        "core.commentChar=W",
        "core.commentString=Why",
        "trailer.sign.key=Signed-off-by",
        "trailer.sign.ifMissing=add",
        "trailer.sign.command=echo hostile",
        "trailer.separators=:#",
        "mailinfo.scissors=true",
        "mailinfo.quotedCr=strip",
        "mailmap.file=MAILMAP",
        "i18n.commitEncoding=ISO-8859-1",
        "i18n.logOutputEncoding=UTF-16",
        "i18n.filesEncoding=ISO-8859-1",
    ),
    "applying": (
        "am.threeWay=false",
        "am.keepcr=false",
        "am.messageId=true",
        "apply.whitespace=fix",
        "apply.ignoreWhitespace=change",
        "core.whitespace=trailing-space,tab-in-indent,cr-at-eol,tabwidth=3",
        "rerere.enabled=true",
        "rerere.autoUpdate=true",
        "merge.conflictStyle=diff3",
        "merge.ff=only",
        "merge.verbosity=5",
        "merge.renormalize=true",
        "submodule.recurse=true",
        "advice.detachedHead=true",
        "rebase.autoStash=true",
    ),
    "line ends and modes": (
        "core.autocrlf=true",
        "core.eol=crlf",
        "core.safecrlf=true",
        "core.fileMode=false",
        "core.symlinks=false",
        "core.ignoreCase=true",
        "core.precomposeUnicode=true",
        "core.trustctime=false",
        "core.checkStat=minimal",
        "core.bigFileThreshold=1",
    ),
    "files": (
        "core.attributesFile=ATTRIBUTES",
        "core.excludesFile=IGNORE",
        "core.hooksPath=HOOKS",
        "core.quotePath=false",
        "core.abbrev=4",
        "core.logAllRefUpdates=false",
        "core.sparseCheckout=true",
        "core.untrackedCache=true",
        "core.preloadIndex=false",
        "core.splitIndex=true",
        "index.version=4",
        "index.threads=2",
        "index.skipHash=true",
        "init.templateDir=TEMPLATE",
        "init.defaultBranch=hostile",
        "init.defaultObjectFormat=sha256",
        "status.showUntrackedFiles=no",
        "status.short=true",
        "status.branch=true",
        "status.relativePaths=true",
    ),
    "colours and columns": (
        "color.ui=always",
        "color.diff=always",
        "color.status=always",
        "color.pager=true",
        "column.ui=always",
        "core.pager=less",
    ),
}
ATTRIBUTES = "* text eol=crlf diff=evil merge=evil filter=evil ident working-tree-encoding=UTF-16 -diff\n"
ENVIRONMENT = {
    "GIT_DIR": "/nonexistent",
    "GIT_WORK_TREE": "/nonexistent",
    "GIT_INDEX_FILE": "/nonexistent/index",
    "GIT_OBJECT_DIRECTORY": "/nonexistent",
    "GIT_COMMON_DIR": "/nonexistent",
    "GIT_NAMESPACE": "hostile",
    "GIT_TEMPLATE_DIR": "/nonexistent",
    "GIT_DEFAULT_HASH": "sha256",
    "GIT_DIFF_OPTS": "--unified=9",
    "GIT_EXTERNAL_DIFF": "false",
    "GIT_PAGER": "false",
    "GIT_EDITOR": "false",
    "GIT_AUTHOR_NAME": "Hostile",
    "GIT_AUTHOR_EMAIL": "hostile@example.org",
    "GIT_AUTHOR_DATE": "2001-01-01T00:00:00+0900",
    "GIT_COMMITTER_NAME": "Hostile",
    "GIT_COMMITTER_EMAIL": "hostile@example.org",
    "GIT_COMMITTER_DATE": "2001-01-01T00:00:00+0900",
    "GIT_ICASE_PATHSPECS": "1",
    "GIT_GLOB_PATHSPECS": "1",
    "GIT_NOTES_REF": "refs/notes/commits",
    "GIT_MERGE_VERBOSITY": "5",
    "GIT_ATTR_SOURCE": "HEAD",
    "EMAIL": "hostile@example.org",
    "LC_ALL": "de_DE.UTF-8",
    "LANGUAGE": "de",
    "LANG": "de_DE.ISO-8859-1",
    "TZ": "Asia/Tokyo",
    "PAGER": "false",
    "EDITOR": "false",
    "VISUAL": "false",
    "COLUMNS": "20",
}


def configuration(settings):
    """The settings as a config file: `a.b.c=d` is key c of section a, subsection b."""
    text = ""
    for setting in settings:
        key, _, value = setting.partition("=")
        section, *between, name = key.split(".")
        subsection = f' "{".".join(between)}"' if between else ""
        text += f'[{section}{subsection}]\n\t{name} = "{value}"\n'
    return text


def hooks(folder):
    folder.mkdir(parents=True)
    names = ("applypatch-msg", "pre-applypatch", "post-applypatch", "pre-commit", "prepare-commit-msg", "commit-msg")
    for name in (*names, "post-commit", "post-checkout", "post-index-change", "post-rewrite", "reference-transaction"):
        (folder / name).write_text(f"#!/bin/sh\necho hook {name} ran >&2\nexit 1\n")
        (folder / name).chmod(0o755)


def placed(home, settings):
    """The settings with the files and folders that they name, which are made in `home`."""
    hooks(home / "hooks")
    hooks(home / "template" / "hooks")
    for name, text in {
        "attributes": ATTRIBUTES,
        "ignore": "*\n",
        "mailmap": "Hostile <h@example.org> <author@example.org>\n",
    }.items():
        (home / name).write_text(text)
    places = {"ATTRIBUTES": "attributes", "IGNORE": "ignore", "HOOKS": "hooks", "TEMPLATE": "template", "MAILMAP": "mailmap"}
    for word, name in places.items():
        settings = [one.replace(f"={word}", f"={home / name}") for one in settings]
    return settings


def make_hostile(repo, home, settings, monkeypatch):
    """Put settings into every place where git looks for them, with hooks, attributes, notes and replaced objects."""
    settings = placed(home, settings)
    text = configuration(settings)
    for place in (home / "system", home / ".gitconfig", home / "xdg" / "git" / "config"):
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
    (home / "xdg" / "git" / "attributes").write_text(ATTRIBUTES)
    git_dir = repo.path / ".git"
    with (git_dir / "config").open("a") as stream:
        stream.write(text)
    (git_dir / "info").mkdir(exist_ok=True)
    (git_dir / "info" / "attributes").write_text(ATTRIBUTES)
    hooks(git_dir / "hooks")
    variables = ENVIRONMENT | {
        "HOME": str(home),
        "XDG_CONFIG_HOME": str(home / "xdg"),
        "GIT_CONFIG_SYSTEM": str(home / "system"),
    }
    variables["GIT_CONFIG_PARAMETERS"] = " ".join(f"'{setting}'" for setting in settings if "'" not in setting)
    variables["GIT_CONFIG_COUNT"] = str(len(settings))
    for number, setting in enumerate(settings):
        variables[f"GIT_CONFIG_KEY_{number}"], _, variables[f"GIT_CONFIG_VALUE_{number}"] = setting.partition("=")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def series(repo, series_of):
    """Everything that settings are known to change: line ends, spaces, renames, modes, odd names, letters, long messages."""
    base = repo.head()
    # far enough apart for a hunk each, near enough for inter-hunk context
    core = numbered(80, _10="ten   ", _22="\ttwenty-two", _30="")
    repo.commit("[Kernel][Perf] Fast\u00e9r core\n\nWhy: slow.\n\n-- >8 --\n# a comment\nTest: x", {"engine/core.py": core})
    repo.git("mv", "engine/other.py", "engine/renamed.py")
    (repo.path / "tool.sh").chmod(0o755)
    files = {"windows.txt": b"one\r\nTWO\r\nthree\r\n", "n\u00e4me": "x\n", "picture.bin": bytes(256), "engine/copy.py": core}
    repo.commit("[Misc] Second\n\nWhy: more.", files)
    repo.git("notes", "add", "-m", "a note", "HEAD")
    return series_of(repo, base)


@pytest.mark.parametrize("group", SETTINGS)
def test_hostile_settings_change_neither_tip_nor_files_nor_patches(repo, series, pin, monkeypatch, group):
    base = repo.head()
    patches = [file.read_bytes() for file in series.patches]
    with monkeypatch.context() as patched:
        make_hostile(repo, repo.path.parent / "home", SETTINGS[group], patched)
        tip = apply_series(repo.path, series, pin)
        exported = export_patches(repo.path, base, tip)
    assert tip == TIP
    assert [patch.name for patch in exported] == [file.name for file in series.patches]
    assert [patch.content for patch in exported] == patches
    assert (repo.path / "engine/core.py").read_text().splitlines()[9] == "ten   "
    assert (repo.path / "windows.txt").read_bytes() == b"one\r\nTWO\r\nthree\r\n"
    assert os.access(repo.path / "tool.sh", os.X_OK)


def test_attributes_of_the_engine_itself_convert_and_hide_nothing(repo, series_of, pin):
    base = repo.commit("attributes", {".gitattributes": "*.py text eol=crlf -diff\nwindows.txt text\n*.md binary merge=ours\n"})
    # the test's own plain git obeys them; what it puts into the commits is what counts
    content = numbered(80, _30="thirty")
    repo.commit("[Misc] Change\n\nText.", {"engine/core.py": content, "README.md": "# changed\n"})
    series = series_of(repo, base)
    assert b"\n+thirty\n" in series.patches[0].read_bytes()
    assert b"\n+# changed\n" in series.patches[0].read_bytes()
    tip = build_tip(repo.path, base, series.patches)
    assert repo.git("show", f"{tip}:engine/core.py") + "\n" == content
    # a checkout of a person's own stays one that the engine's attributes hold for
    assert apply_series(repo.path, series, pin) == tip
    assert (repo.path / "engine/core.py").read_bytes() == content.replace("\n", "\r\n").encode()
    assert repo.git("status", "--porcelain") == ""


def test_replaced_objects_are_not_looked_at(repo, series, pin):
    base = repo.head()
    blob = repo.git("rev-parse", "HEAD:engine/core.py")
    other = repo.git("rev-parse", "HEAD:README.md")
    repo.git("replace", blob, other)
    assert apply_series(repo.path, series, pin) == TIP
    patches = [file.read_bytes() for file in series.patches]
    assert [patch.content for patch in export_patches(repo.path, base, TIP)] == patches


def test_an_export_is_what_git_itself_writes(repo, series, pin):
    """Without settings, and with the flags that name nothing of this machine."""
    apply_series(repo.path, series, pin)
    flags = ("--zero-commit", "--full-index", "--keep-subject", "--no-stat", "--no-signature", "--no-renames")
    command = ["git", "-c", "diff.algorithm=histogram", "format-patch", "--stdout", *flags, "-1", TIP]
    assert subprocess.run(command, cwd=repo.path, capture_output=True, check=True).stdout == series.patches[-1].read_bytes()


def plain(repo, folder, base, patches, settings):
    """What plain git makes of the patches in a copy of the repository, and then prints, for a user with these settings."""
    copy = folder / "copy"
    shutil.copytree(repo.path, copy, symlinks=True)
    config = folder / "config"
    config.write_text(configuration(("user.name=C. Committer", "user.email=committer@example.org", *settings)))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")} | {
        "HOME": str(folder),
        "XDG_CONFIG_HOME": str(folder),
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": str(config),
        "GIT_COMMITTER_DATE": "2026-11-02T12:00:00+0200",
    }

    def git(*words):
        done = subprocess.run(
            ["git", *words], cwd=copy, env=environment, capture_output=True, check=False, stdin=subprocess.DEVNULL
        )
        return done.returncode, done.stdout

    applied = git("am", "--quiet", "--keep-cr", *(str(patch) for patch in patches))
    printed = [
        git(*words)
        for words in (
            ("rev-parse", "HEAD"),
            ("format-patch", "--stdout", f"{base}..HEAD"),
            ("show", "--stat", "--patch", "HEAD"),
            ("diff", base, "HEAD"),
        )
    ]
    found = (file for file in copy.rglob("*") if file.is_file() and ".git" not in file.parts)
    files = {file.relative_to(copy): file.read_bytes() for file in found}
    return applied, printed, files


@pytest.mark.parametrize("group", SETTINGS)
def test_plain_git_is_changed_by_these_settings(repo, series, tmp_path, group):
    """The control: each group is hostile indeed. It changes the tip, the files or what is printed, or makes git fail."""
    base = repo.head()
    made = []
    for name, settings in (("calm", ()), ("hostile", SETTINGS[group])):
        folder = tmp_path / name
        folder.mkdir()
        made.append(plain(repo, folder, base, series.patches, placed(folder / "home", settings)))
    calm, hostile = made
    assert calm[0] == (0, b""), "without settings the patches apply"
    assert all(status == 0 for status, _ in calm[1])
    assert hostile != calm
