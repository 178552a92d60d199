"""What a person asked for on the command line of a bench session."""

from __future__ import annotations

import argparse
import dataclasses
from dataclasses import dataclass
from pathlib import Path

from harness.bench.devices import AUTO, visible_device
from harness.errors import UsageError
from harness.vocabulary import Device, Mode, Tier

__all__ = ["BenchRequest", "Origin", "add_arguments", "request_of"]

FAILING = ("slower", "inconclusive", "equivalent", "no-sign")


@dataclass(frozen=True, slots=True)
class Origin:
    """What a person named, as far as a plan does not say it; stored beside the plan. `mirror` is a path of this machine."""

    patched: str
    pin: str
    device: Device
    model: str | None
    mirror: str | None


@dataclass(frozen=True, slots=True)
class BenchRequest:
    """The options of a bench session; None where the series or the workload decides."""

    patched: str
    workload: str | None
    model: str | None
    pin: str
    device: Device
    mirror: Path | None
    tier: Tier
    mode: Mode | None
    aa: bool
    repeat: int
    generations: int | None
    blocks: int | None
    seed: int
    dry_run: bool
    resume: str | None
    keep: bool
    fail_on: frozenset[str]

    @property
    def origin(self) -> Origin:
        mirror = None if self.mirror is None else str(self.mirror.expanduser().resolve())
        return Origin(self.patched, self.pin, self.device, self.model, mirror)

    def with_origin(self, origin: Origin) -> BenchRequest:
        """The same request about what another one named."""
        return dataclasses.replace(
            self,
            patched=origin.patched,
            pin=origin.pin,
            device=origin.device,
            model=origin.model,
            mirror=None if origin.mirror is None else Path(origin.mirror),
        )


def add_arguments(parser: argparse.ArgumentParser, *, default_series: str, default_device: Device | None = Device.CPU) -> None:
    """The options that all engines' bench sessions have. Without a default device, machine and workload decide."""
    what = parser.add_argument_group("what is compared")
    what.add_argument(
        "--patched",
        metavar="SERIES|REF|PATH",
        default=default_series,
        help="a series, a ref of the git source or mirror, or the path of your own checkout (default: %(default)s)",
    )
    what.add_argument("--pin", metavar="PIN", default="bench", help="bench, head or a pinned version (default: %(default)s)")
    what.add_argument("--mirror", type=Path, metavar="DIR", help="local git repository to take the engine's source from")
    what.add_argument("--aa", action="store_true", help="base against base: measures the noise, and stores it")
    run = parser.add_argument_group("what is run")
    run.add_argument("--workload", metavar="NAME", help="a file of workloads/ (default: the series' first)")
    run.add_argument("--model", metavar="PATH|NAME", help="a real model's folder, or another model of workloads/models")
    run.add_argument(
        "--device",
        choices=[AUTO, *(one.value for one in Device)] if default_device is None else [one.value for one in Device],
        default=AUTO if default_device is None else default_device.value,
        help="default: %(default)s" + (" (cuda where there is a GPU and a workload for it)" if default_device is None else ""),
    )
    how = parser.add_argument_group("how much")
    how.add_argument("--confirm", action="store_true", help="a verdict (many generations) instead of a screen (one)")
    how.add_argument("--mode", choices=[one.value for one in Mode], help="default: live for servers, process for the others")
    how.add_argument("--generations", type=_positive, metavar="N", help="generations of a confirm experiment")
    how.add_argument("--blocks", type=_positive, metavar="N", help="ABBA blocks (two pairs each) in a generation")
    how.add_argument("--repeat", type=_positive, metavar="N", default=1, help="make N experiments one after the other")
    how.add_argument("--seed", type=int, default=0, help="seed of prompts and order (default: %(default)s)")
    end = parser.add_argument_group("before and after")
    end.add_argument("--dry-run", action="store_true", help="print the plan and what it costs; make nothing")
    end.add_argument("--resume", metavar="ID", help="go on with an experiment that was stopped")
    end.add_argument("--keep", action="store_true", help="put evidence and report into the series' evidence folder")
    end.add_argument(
        "--fail-on",
        nargs="+",
        choices=FAILING,
        default=[],
        metavar="RESULT",
        help=f"exit with 1 on these results too (of {', '.join(FAILING)})",
    )

    # What a plan fixes: with --resume these must be left as they are.
    after = {"resume", "keep", "fail_on"}
    options = [one for group in (what, run, how, end) for one in group._group_actions]  # noqa: SLF001  no public way to list
    parser.set_defaults(planned={one.dest: one.default for one in options if one.dest not in after})


def _positive(text: str) -> int:
    number = int(text) if text.isdecimal() else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return number


def request_of(args: argparse.Namespace) -> BenchRequest:
    """The request. Raises UsageError for options that do not go together."""
    if args.resume:
        given = sorted(name for name, default in args.planned.items() if getattr(args, name) != default)
        if given:
            named = ", ".join(f"--{name.replace('_', '-')}" for name in given)
            raise UsageError(f"--resume goes on with an experiment as it was planned; leave out {named}")
    if not args.confirm and args.generations is not None:
        raise UsageError("a screen is one generation; --generations goes with --confirm")
    if args.keep and args.aa:
        raise UsageError("--keep stores evidence about a series; an A/A experiment is about the machine (it is stored anyway)")
    return BenchRequest(
        patched=args.patched,
        workload=args.workload,
        model=args.model,
        pin=args.pin,
        device=visible_device() if args.device == AUTO else Device(args.device),
        mirror=args.mirror,
        tier=Tier.CONFIRM if args.confirm else Tier.SCREEN,
        mode=Mode(args.mode) if args.mode else None,
        aa=args.aa,
        repeat=args.repeat,
        generations=args.generations,
        blocks=args.blocks,
        seed=args.seed,
        dry_run=args.dry_run,
        resume=args.resume,
        keep=args.keep,
        fail_on=frozenset(args.fail_on),
    )
