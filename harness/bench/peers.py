"""A kernel of this repository against its peers: each in a worker of its own, all in the same run, in rotating order."""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import hashlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from harness.bench.devices import device_fingerprint
from harness.bench.locked import MACHINE_LOCK, one_experiment
from harness.bench.peer_evidence import CellSample, PeerEvidence, Variant, write_peer_evidence
from harness.bench.peer_report import render_peers
from harness.context import Context
from harness.errors import EvidenceError, RunError, UnknownWorkloadError, UsageError
from harness.experiments.machine import read_machine
from harness.files import write_atomically
from harness.names import nearest
from harness.paths import Paths
from harness.runs.kernel_worker import KernelWorker, PointResult
from harness.runs.process import make_folder
from harness.runs.server import ServerFailure
from harness.timing.point import Settings
from harness.timing.workfile import Workfile
from harness.vocabulary import CacheState, Device, ExitCode, Outcome
from harness.workloads.kernel_reader import REPLAYS, RUN_TIMEOUT_S, START_TIMEOUT_S, read_workfile

__all__ = ["PeerRequest", "bench_peers", "list_peer_files", "peer_file", "worker_environment"]

GENERATIONS = 3
# Counted rounds of a generation: one forwards, one backwards, so that drift meets every kernel alike.
ROUNDS = 2
KEPT_SHARE = 0.6


@dataclasses.dataclass(frozen=True, slots=True)
class PeerRequest:
    """What was asked for on the command line."""

    kernel: str
    device: Device
    variants: tuple[str, ...]
    only: tuple[str, ...]
    states: tuple[str, ...]
    # Module that a variant needs -> interpreter; "" for every other variant.
    pythons: Mapping[str, str]
    generations: int
    seed: int
    evidence: str | None
    dry_run: bool

    @classmethod
    def of(cls, args: argparse.Namespace) -> PeerRequest:
        """Raises UsageError for options that are about a series."""
        if args.patched or args.workload or args.aa or args.resume:
            raise UsageError(f"{args.kernel} is compared with its peers; leave out --patched, --workload, --aa and --resume")
        return cls(
            kernel=args.kernel,
            device=Device(args.device),
            variants=tuple(args.variants or ()),
            only=tuple(args.only or ()),
            states=tuple(args.states or (state.value for state in CacheState)),
            pythons=_pythons(args.python or ()),
            generations=args.generations or GENERATIONS,
            seed=args.seed,
            evidence=args.evidence,
            dry_run=args.dry_run,
        )


def _pythons(given: Sequence[str]) -> dict[str, str]:
    """`vllm=/env/bin/python` is for variants that need vllm; a bare path, else the first, else ours, is for the others."""
    found: dict[str, str] = {}
    for one in given:
        module, equals, path = one.partition("=")
        found[module if equals else ""] = path if equals else one
    return {"": next(iter(found.values()), sys.executable), **found}


def list_peer_files(paths: Paths) -> tuple[str, ...]:
    """Names of the kernels that have a peers.py."""
    return tuple(sorted(path.parent.name for path in (paths.root / "kernels").glob("*/peers.py")))


def peer_file(paths: Paths, kernel: str) -> Path:
    """Where it is. Raises UnknownWorkloadError, with the nearest names."""
    known = list_peer_files(paths)
    if kernel not in known:
        raise UnknownWorkloadError(f"there is no kernel {kernel!r} with a peers.py in kernels/. {nearest(kernel, known)}")
    return paths.root / "kernels" / kernel / "peers.py"


def bench_peers(context: Context, request: PeerRequest) -> ExitCode:
    """Measure all variants that are here and print the table; VOID when one of ours has a wrong result or failed."""
    file = peer_file(context.paths, request.kernel)
    work = read_workfile(file)
    points, variants = _chosen(work, request)
    if request.dry_run:
        print(f"{request.kernel}: {len(points)} points x {len(variants)} kernels ({', '.join(variants)}), ")
        print(f"{request.generations} generations of fresh workers, {ROUNDS} counted rounds and one warm-up in each")
        return ExitCode.OK
    device = device_fingerprint(request.device, read_machine())
    moment = datetime.datetime.now(datetime.UTC)
    folder = context.paths.experiments / f"{moment:%Y%m%d-%H%M%S}-kernels-{request.kernel}-peers"
    make_folder(folder)
    with one_experiment(MACHINE_LOCK):
        session = _Peers(context, request, file, work, points, variants, folder)
        samples = tuple(session.generations())
    evidence = PeerEvidence(
        written=moment.isoformat(timespec="seconds"),
        kernel=request.kernel,
        file_digest=hashlib.sha256(file.read_bytes()).hexdigest(),
        device=device,
        machine=read_machine(),
        software=session.software,
        points=points,
        moved={name: work.bytes_and_flops(work.by_name[name])[0] for name in points},
        variants={
            name: Variant(str(work.variants[name]["role"]), str(work.variants[name].get("what", ""))) for name in variants
        },
        missing=session.missing,
        generations=request.generations,
        seed=request.seed,
        replays=REPLAYS,
        samples=samples,
    )
    write_peer_evidence(folder / "evidence.json", evidence)
    text = render_peers(evidence)
    write_atomically(folder / "report.md", text, EvidenceError)
    print(text)
    context.progress.say(f"evidence.json, report.md and logs are in {folder}")
    if request.evidence:
        kept = file.parent / "evidence" / request.evidence
        write_peer_evidence(kept.with_name(f"{kept.name}.json"), evidence)
        write_atomically(kept.with_name(f"{kept.name}.md"), text, EvidenceError)
    bad = [one for one in samples if one.problem and evidence.variants[one.variant].role == "ours"]
    return ExitCode.VOID if bad or not samples else ExitCode.OK


def _chosen(work: Workfile, request: PeerRequest) -> tuple[tuple[str, ...], tuple[str, ...]]:
    unknown = [name for name in request.variants if name not in work.variants]
    if unknown:
        raise UsageError(f"{request.kernel} has no kernel {unknown[0]!r}. {nearest(unknown[0], tuple(work.variants))}")
    points = tuple(name for name in work.by_name if not request.only or any(text in name for text in request.only))
    if not points:
        raise UsageError(f"no point of {request.kernel} has a name with {' or '.join(request.only)} in it; --list shows them")
    return points, tuple(name for name in work.variants if not request.variants or name in request.variants)


@dataclasses.dataclass(slots=True)
class _Peers:
    """Makes the generations; what it learns about the variants on the way is kept for the evidence."""

    context: Context
    request: PeerRequest
    file: Path
    work: Workfile
    points: tuple[str, ...]
    variants: tuple[str, ...]
    folder: Path
    # Variant -> why it did not run.
    missing: dict[str, str] = dataclasses.field(default_factory=dict)
    software: dict[str, str] = dataclasses.field(default_factory=dict)

    def generations(self) -> Iterator[CellSample]:
        for number in range(1, self.request.generations + 1):
            with ExitStack() as stack:
                workers = self._start(stack, number)
                if not any(self.work.variants[name]["role"] == "ours" for name in workers):
                    raise RunError(f"none of our kernels runs here: {'; '.join(f'{k}: {v}' for k, v in self.missing.items())}")
                for turn in range(ROUNDS + 1):
                    yield from self._round(workers, number, turn)

    def _start(self, stack: ExitStack, number: int) -> dict[str, KernelWorker]:
        directory = self.folder / f"generation-{number}"
        make_folder(directory)
        workers: dict[str, KernelWorker] = {}
        for name in (one for one in self.variants if one not in self.missing):
            workers[name] = KernelWorker(
                self._command(name),
                environment=worker_environment(self.folder / "triton-cache", self.context.paths.root),
                directory=directory,
                file=self.file,
                device=self.request.device.value,
                variant=name,
                kernels=self.context.paths.root / "kernels",
                name=name,
            )
            stack.callback(workers[name].stop)
        with self.context.progress.step(f"generation {number}: starting {len(workers)} workers"):
            for name, worker in list(workers.items()):
                try:
                    hello = worker.wait_ready(START_TIMEOUT_S)
                except ServerFailure as failure:
                    self.missing[name] = failure.detail.strip().splitlines()[-1]
                    self.context.progress.warn(f"{name} does not run: {self.missing[name]}")
                    del workers[name]
                    continue
                self.software |= {"torch": hello.torch, "python": hello.python, **hello.packages}
        return workers

    def _command(self, variant: str) -> Callable[..., Sequence[str]]:
        """Runs the Python that has what the variant needs."""
        needs = self.work.variants[variant].get("needs", ())
        python = next((self.request.pythons[one] for one in needs if one in self.request.pythons), self.request.pythons[""])
        return lambda *arguments: (python, *arguments)

    def _round(self, workers: Mapping[str, KernelWorker], number: int, turn: int) -> Iterator[CellSample]:
        """One pass over all variants; the first warms up and is thrown away, the last runs in the opposite order."""
        names = list(workers)
        shift = (number - 1 + self.request.seed) % max(1, len(names))
        order = names[shift:] + names[:shift]
        for name in order if turn < ROUNDS else reversed(order):
            if name in self.missing:
                continue
            worker = workers[name]
            what = f"round {turn}" if turn else "warm-up"
            self.context.progress.say(f"generation {number}/{self.request.generations}, {what}: {name}")
            keep = 0 if worker.hello is None else int(worker.hello.memory_bytes * KEPT_SHARE / len(workers))
            settings = Settings(states=self.request.states, replays=REPLAYS, seed=self.request.seed)
            try:
                for one in worker.measure(settings, points=self.points, keep_bytes=keep, timeout_s=RUN_TIMEOUT_S):
                    problem = _problem(one)
                    if turn or problem:
                        yield _sample(name, number, turn, one, problem)
            except ServerFailure as failure:
                self.missing[name] = failure.detail.strip().splitlines()[-1]
                self.context.progress.warn(f"{name} ended: {self.missing[name]}")


def _problem(one: PointResult) -> str:
    """Why a result does not count; empty when it does, or when the variant does not cover the point."""
    if one.outcome is not Outcome.OK:
        return f"{one.outcome}: {one.detail}"
    return "; ".join(f"{guard}: {details[0]}" for guard, details in one.fired.items())


def _sample(variant: str, generation: int, turn: int, one: PointResult, problem: str) -> CellSample:
    return CellSample(
        variant=variant,
        point=one.point,
        generation=generation,
        round=turn,
        times={state: found.us for state, found in one.times.items()},
        low={state: found.min for state, found in one.times.items()},
        high={state: found.max for state, found in one.times.items()},
        error=max(one.errors.values(), default=0.0),
        skipped=one.skipped,
        problem=problem,
    )


def worker_environment(cache: Path, root: Path) -> dict[str, str]:
    """The user's, less the checkout on the import path: its folder `kernels` would hide PyPI's package of that name.

    Triton's cache is the run's own, so that nothing compiled by another version is used; generations share it.
    """
    kept = dict(os.environ)
    search = [one for one in kept.pop("PYTHONPATH", "").split(os.pathsep) if one and Path(one).resolve() != root]
    return {**kept, "PYTHONSAFEPATH": "1", "TRITON_CACHE_DIR": str(cache)} | (
        {"PYTHONPATH": os.pathsep.join(search)} if search else {}
    )
