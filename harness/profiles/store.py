"""A profile's table as a small JSON file: what is kept, compared and committed instead of a recording of gigabytes."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

from harness.errors import ProfileError
from harness.fields import Fields
from harness.files import write_atomically
from harness.profiles.model import SCHEMA, Category, DeviceTotals, HotRow, Profile, Recorder
from harness.vocabulary import Phase

__all__ = ["TABLE_NAME", "is_table", "load_profile", "save_profile"]

TABLE_NAME = "profile.json"
_MARK = '"upkernel profile"'


def save_profile(path: Path, profile: Profile) -> None:
    """Raises ProfileError when it cannot be written."""
    content = {
        "kind": "upkernel profile",
        "schema": SCHEMA,
        "label": profile.label,
        "recorder": profile.recorder,
        "tool": profile.tool,
        "steps": [{"phase": phase, "count": count} for phase, count in sorted(profile.steps.items())],
        "between_steps_ns": profile.between_steps_ns,
        "notes": list(profile.notes),
        "devices": [dataclasses.asdict(one) for one in profile.devices],
        "rows": [dataclasses.asdict(one) for one in profile.rows],
    }
    write_atomically(path, json.dumps(content, indent=1) + "\n", ProfileError)


def is_table(path: Path) -> bool:
    """Whether the file is a stored table, told by its first field."""
    with path.open("rb") as stream:
        return _MARK.encode() in stream.read(200)


def load_profile(path: Path, *, label: str | None = None) -> Profile:
    """Raises ProfileError for a file that is cut off, of another schema, or whose rows do not add up."""
    try:
        table = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ProfileError(f"cannot read {path}: {error}") from error
    fields = Fields(str(path), table, ProfileError)
    fields.text("kind")
    fields.schema(SCHEMA)
    profile = Profile(
        label=label or fields.text("label"),
        recorder=fields.choice("recorder", Recorder),
        tool=fields.text("tool"),
        steps={one.choice("phase", Phase): one.whole("count") for one in fields.tables("steps")},
        between_steps_ns=fields.whole("between_steps_ns"),
        notes=fields.texts("notes"),
        devices=tuple(_device(one) for one in fields.tables("devices")),
        rows=tuple(_row(one) for one in fields.tables("rows")),
    )
    for totals in profile.devices:
        summed = sum(row.total_ns for row in profile.rows if row.device == totals.device)
        if summed != totals.summed_ns:
            raise ProfileError(
                f"{path}: the rows of device {totals.device} add up to {summed} ns, summed_ns says {totals.summed_ns}; "
                "the file was changed by hand or cut"
            )
    return profile


def _device(fields: Fields) -> DeviceTotals:
    return DeviceTotals(
        device=fields.whole("device"),
        kernels=fields.whole("kernels"),
        copies=fields.whole("copies"),
        span_ns=fields.whole("span_ns"),
        busy_ns=fields.whole("busy_ns"),
        summed_ns=fields.whole("summed_ns"),
    )


def _row(fields: Fields) -> HotRow:
    return HotRow(
        device=fields.whole("device"),
        name=fields.text("name"),
        category=fields.choice("category", Category),
        phase=fields.choice("phase", Phase),
        calls=fields.whole("calls", least=1),
        total_ns=fields.whole("total_ns"),
        least_ns=fields.whole("least_ns"),
        most_ns=fields.whole("most_ns"),
    )
