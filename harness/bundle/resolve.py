"""Which distributions an engine needs from the kit: its locked list, minus the host's, minus what the tables leave out."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from email.parser import HeaderParser
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.version import InvalidVersion, Version

from harness.bundle.select import ANY_VERSION, PINNED, from_the_host, left_out, normalised
from harness.bundle.target import Target
from harness.errors import BundleError

__all__ = ["Choice", "choose", "choose_for", "requirements_of"]

WheelOf = Callable[[str, str], Path]


@dataclass(slots=True)
class Choice:
    """One engine's share of a kit.

    `carried`: name -> (version, wheel). `host`: what the host must have, name -> range that is
    required ("==2.11.0") or the version that it had ("1.5"). `left_out`: name -> reason.
    `tests`: those of `carried` that only the engine's test files import.
    """

    carried: dict[str, tuple[str, Path]] = field(default_factory=dict)
    host: dict[str, str] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    tests: frozenset[str] = frozenset()


def choose(
    engine: tuple[str, str], listed: Mapping[str, str], target: Target, wheel_of: WheelOf, also: Iterable[str] = ()
) -> Choice:
    """Walk from the engine (name, version) along what each carried wheel requires.

    What the host has is taken from it when its version satisfies everything that a carried distribution asks of it; the host's
    own installation has what that needs in turn. `also` names distributions carried besides.

    Raises BundleError when the locked list lacks a distribution that is needed.
    """
    waiting: _Waiting = [(engine[0], frozenset())]
    waiting += [(name, frozenset()) for name in also if name not in target.have]
    return _walk(waiting, {**listed, engine[0]: engine[1]}, target, wheel_of)


def choose_for(wanted: Iterable[Requirement], listed: Mapping[str, str], target: Target, wheel_of: WheelOf) -> Choice:
    """The same for something that is no distribution itself, from what it requires. Raises BundleError like `choose`."""
    choice = Choice()
    waiting = [
        (name, frozenset(one.extras)) for one in wanted if _is_carried(name := normalised(one.name), [one], target, choice)
    ]
    walked = _walk(waiting, listed, target, wheel_of)
    return replace(walked, host={**choice.host, **walked.host})


_Waiting = list[tuple[str, frozenset[str]]]


def _walk(waiting: _Waiting, versions: Mapping[str, str], target: Target, wheel_of: WheelOf) -> Choice:
    who = waiting[0][0] if waiting else "nothing"
    choice = Choice()
    asked: dict[str, list[Requirement]] = {}
    seen: set[tuple[str, frozenset[str]]] = set()
    while waiting:
        name, extras = waiting.pop()
        if (name, extras) in seen:
            continue
        seen.add((name, extras))
        version = versions.get(name)
        if version is None:
            raise BundleError(
                f"{name} is needed by {who}, but the locked list has no line for it. "
                "Add it to the list in upstream/requirements."
            )
        wheel = wheel_of(name, version)
        choice.carried[name] = (version, wheel)
        choice.host.pop(name, None)
        choice.left_out.pop(name, None)
        for requirement in requirements_of(wheel, target.markers, extras):
            needed = normalised(requirement.name)
            asked.setdefault(needed, []).append(requirement)
            if _is_carried(needed, asked[needed], target, choice):
                waiting.append((needed, frozenset(requirement.extras)))
    return choice


def _is_carried(name: str, asked: list[Requirement], target: Target, choice: Choice) -> bool:
    """Whether the kit carries it; otherwise notes where it comes from, or that it is left out."""
    if name in choice.carried:
        return True
    there = target.have.get(name)
    if from_the_host(name):
        wanted = next((str(one.specifier) for one in asked if one.specifier), "")
        choice.host[name] = wanted
        return False
    if there is not None and name not in PINNED and (name in ANY_VERSION or _satisfies(there, asked)):
        choice.host[name] = there
        return False
    reason = left_out(name)
    if reason is not None:
        choice.left_out[name] = reason
        return False
    return True


def _satisfies(version: str, asked: list[Requirement]) -> bool:
    try:
        parsed = Version(version)
    except InvalidVersion:
        return False
    return all(one.specifier.contains(parsed, prereleases=True) for one in asked)


def requirements_of(wheel: Path, markers: Mapping[str, str], extras: frozenset[str]) -> list[Requirement]:
    """What a wheel's metadata requires on a host with these markers, with these extras.

    Raises BundleError when the file is no wheel or its metadata cannot be read.
    """
    try:
        with zipfile.ZipFile(wheel) as archive:
            names = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA") and name.count("/") == 1]
            text = archive.read(names[0]).decode("utf-8") if names else ""
    except (OSError, zipfile.BadZipFile) as error:
        raise BundleError(f"{wheel} is no wheel ({error}). Remove it and run again: it is fetched anew.") from error
    if not text:
        raise BundleError(f"{wheel} has no METADATA, so it is no wheel. Remove it and run again: it is fetched anew.")
    found = []
    for line in HeaderParser().parsestr(text).get_all("Requires-Dist") or []:
        try:
            requirement = Requirement(line)
        except InvalidRequirement as error:
            raise BundleError(f"{wheel.name} requires {line!r}, which is no requirement: {error}") from error
        if requirement.marker is None or any(
            requirement.marker.evaluate({**markers, "extra": extra}) for extra in (extras or frozenset({""})) | {""}
        ):
            found.append(requirement)
    return found
