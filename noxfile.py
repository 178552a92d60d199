"""What people type. Each session passes everything after `--` to one command of `python -m harness`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import nox

if sys.version_info < (3, 11):  # noqa: UP036 - pip would say it worse, about the first package that needs a newer one
    sys.exit(f"Python 3.11 or 3.12 is needed, this is {sys.version.split()[0]}: install nox with one of those and run it again")

nox.needs_version = ">=2025.2.9"
nox.options.sessions = ["lint", "tests"]
nox.options.reuse_venv = "yes"
nox.options.error_on_external_run = True

# An experiment that ends in "slower" or "inconclusive" did its work; --fail-on makes it a failure.
ANSWERED = (0, 10, 11)
# Seconds that a command gets after Ctrl-C to end its engines, free the device and write what is finished. nox's own patience
# is 0.3 s before it terminates and 0.2 s before it kills, which would leave servers running.
PATIENCE = 60.0

PROJECT = nox.project.load_toml("pyproject.toml")


def group(name: str) -> list[str]:
    """The pinned packages of one dependency group."""
    return list(nox.project.dependency_groups(PROJECT, name))


def harness(session: nox.Session, command: str, success: Sequence[int] = (0,)) -> None:
    """Run one harness command with what the user gave after `--`."""
    session.install("--quiet", *group("harness"))
    session.run(
        *("python", "-m", "harness", command, *session.posargs),
        success_codes=success,
        interrupt_timeout=PATIENCE,
        terminate_timeout=PATIENCE,
    )


@nox.session
def tests(session: nox.Session) -> None:
    """Run the tests; needs no GPU and no network beyond the package index."""
    session.install("--quiet", *group("harness"), *group("charts"), *group("tests"))
    session.run("pytest", *session.posargs)


@nox.session(default=False)
def kernels(session: nox.Session) -> None:
    """Run the kernel tests: on the GPU, or on a CPU in Triton's interpreter (3 minutes, 5 GB of packages)."""
    session.install("--quiet", *group("tests"), *group("kernels"))
    session.install("--quiet", "--no-deps", "--editable", ".")
    session.run("pytest", "tests/kernels", *session.posargs)


@nox.session
def lint(session: nox.Session) -> None:
    """Check style (ruff), types (mypy), spelling (codespell) and every series."""
    session.install("--quiet", *group("harness"), *group("tests"), *group("lint"))
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("mypy")
    session.run("codespell")
    session.run("python", "-m", "harness", "check", *session.posargs)


@nox.session(default=False)
def doctor(session: nox.Session) -> None:
    """Say what this machine can do, and how to mend what it cannot."""
    harness(session, "doctor")


@nox.session(default=False)
def bench_vllm(session: nox.Session) -> None:
    """Measure a vLLM series: base against patched, with the engine's own benchmark scripts."""
    harness(session, "bench_vllm", success=ANSWERED)


@nox.session(default=False)
def bench_sglang(session: nox.Session) -> None:
    """Measure an SGLang series on a GPU: base against patched, with the engine's own benchmark scripts."""
    harness(session, "bench_sglang", success=ANSWERED)


@nox.session(default=False)
def bench_flashinfer(session: nox.Session) -> None:
    """Measure a FlashInfer series on a GPU: its own benchmark script (from git), else kernel workloads."""
    harness(session, "bench_flashinfer", success=ANSWERED)


@nox.session(default=False)
def bench_kernels(session: nox.Session) -> None:
    """Measure one kernel: base against a series, or ours against its peers: nox -s bench_kernels -- paged_decode."""
    harness(session, "bench_kernels", success=ANSWERED)


@nox.session(default=False)
def pin(session: nox.Session) -> None:
    """Add a release to upstream/pins.toml: nox -s pin -- vllm 0.34.0."""
    harness(session, "pin")


@nox.session(default=False)
def new(session: nox.Session) -> None:
    """Start a series: nox -s new -- vllm/NAME."""
    harness(session, "new")


@nox.session(default=False)
def apply(session: nox.Session) -> None:
    """Make the tree of a series: nox -s apply -- vllm/NAME."""
    harness(session, "apply")


@nox.session(default=False)
def export(session: nox.Session) -> None:
    """Write a tree's commits back as the patches of its series: nox -s export -- vllm/NAME."""
    harness(session, "export")


@nox.session(default=False)
def check(session: nox.Session) -> None:
    """Say what a reviewer would send back: nox -s check -- vllm/NAME (default: every series)."""
    harness(session, "check")


@nox.session(default=False)
def drift(session: nox.Session) -> None:
    """Say what became of each series on other releases: nox -s drift -- vllm/NAME --pin head."""
    harness(session, "drift")


@nox.session(default=False)
def port(session: nox.Session) -> None:
    """Carry a series to another release: nox -s port -- vllm/NAME --to head."""
    harness(session, "port")


@nox.session(default=False)
def arms(session: nox.Session) -> None:
    """List every difference of two arms: nox -s arms -- base vllm/NAME."""
    harness(session, "arms")


@nox.session(default=False)
def upstream_tests(session: nox.Session) -> None:
    """Run the engine's own tests on base and patched tree: nox -s upstream_tests -- vllm/NAME."""
    harness(session, "upstream_tests")


@nox.session(default=False)
def pr(session: nox.Session) -> None:
    """Write the pull request's page of a series, or say all that is missing: nox -s pr -- vllm/NAME."""
    harness(session, "pr")


@nox.session(default=False)
def bundle(session: nox.Session) -> None:
    """Make an offline kit of the engines for a GPU host without a network: nox -s bundle -- --have have.txt."""
    harness(session, "bundle")


@nox.session(default=False)
def repro(session: nox.Session) -> None:
    """Reproduce a public issue on the engine as released: nox -s repro -- https://github.com/vllm-project/vllm/issues/48076."""
    harness(session, "repro")


@nox.session(default=False)
def calibrate(session: nox.Session) -> None:
    """Measure this device's noise, base against base: nox -s calibrate -- --workload vllm/triton_decode."""
    harness(session, "calibrate")


@nox.session(default=False)
def profile(session: nox.Session) -> None:
    """Say where the GPU time of a run goes: nox -s profile -- --out DIR -- python -m ... (or --from FILE)."""
    session.install("--quiet", *group("charts"))
    harness(session, "profile")


@nox.session(default=False)
def diff(session: nox.Session) -> None:
    """Compare two profiles kernel by kernel: nox -s diff -- BASE PATCHED."""
    session.install("--quiet", *group("charts"))
    harness(session, "diff")


@nox.session(default=False)
def clean(session: nox.Session) -> None:
    """List what trees, environments, caches and results take; --yes frees all but results and work trees."""
    harness(session, "clean")
