from __future__ import annotations

import datetime

import pytest

from harness.errors import SeriesError, UnknownSeriesError
from harness.series.model import DuplicateCheck
from harness.series.reader import list_series, parse_id, patches_for, read_series, stack
from harness.vocabulary import Engine, SeriesStatus

from .conftest import SERIES

FIELDS = {
    "title": "a string",
    "why": "a string",
    "links": "a list of non-empty strings",
    "after": "a list of non-empty strings",
    "status": "one of draft, ready, submitted, merged, rejected, known-answer",
    "status_date": "a date without quotes",
    "pin": "the version of a pin",
    "ports": "a list of non-empty strings",
    "workloads": "a list of non-empty strings",
    "upstream_tests": "a list of non-empty strings",
    "evidence": "a list of non-empty strings",
    "build": "true or false",
    "removal": "a string",
}


def without(field):
    return "".join(line for line in SERIES.splitlines(keepends=True) if not line.startswith(f"{field} ="))


def changed(field, value):
    return "".join(f"{field} = {value}\n" if one.startswith(f"{field} =") else one for one in SERIES.splitlines(keepends=True))


def test_every_field_is_read(make_series):
    text = SERIES.replace("ports = []", 'ports = ["0.33.0"]').replace("build = false", "build = true")
    series = make_series(patches={"0002-b.patch": b"", "0001-a.patch": b"", "note.txt": b""}, text=text)
    assert series.id == "vllm/x"
    assert series.engine is Engine.VLLM
    assert (series.title, series.why, series.removal) == ("Faster core", "It is slow.", "Upstream has it.")
    assert series.links == ("https://example.org/issues/1",)
    assert series.duplicates == DuplicateCheck(datetime.date(2026, 11, 30), ())
    assert series.status is SeriesStatus.DRAFT
    assert series.status_date == datetime.date(2026, 11, 30)
    assert (series.pin, series.ports, series.build) == ("0.24.0", ("0.33.0",), True)
    assert (series.after, series.workloads, series.upstream_tests, series.evidence) == ((), (), (), ())
    assert [patch.name for patch in series.patches] == ["0001-a.patch", "0002-b.patch"]


@pytest.mark.parametrize("field", FIELDS)
def test_a_missing_field_is_named_with_what_it_must_be(make_series, field):
    with pytest.raises(SeriesError, match=rf"vllm/x/series\.toml: field '{field}' is missing; it must be {FIELDS[field]}"):
        make_series(text=without(field))


@pytest.mark.parametrize("field", FIELDS)
def test_a_malformed_field_is_named_with_its_value(make_series, field):
    with pytest.raises(SeriesError, match=rf"series\.toml: field '{field}' is malformed: got 7, it must be {FIELDS[field]}"):
        make_series(text=changed(field, "7"))


@pytest.mark.parametrize(
    ("field", "value"),
    [("status", '"drafty"'), ("status_date", '"2026-11-30"'), ("status_date", "2026-11-30T12:00:00"), ("links", '["", "x"]')],
)
def test_values_of_the_right_type_can_be_malformed_too(make_series, field, value):
    with pytest.raises(SeriesError, match=f"field '{field}' is malformed"):
        make_series(text=changed(field, value))


def test_a_malformed_check_for_duplicates_names_the_inner_field(make_series):
    with pytest.raises(SeriesError, match=r"field 'duplicates\.date' is missing"):
        make_series(text=SERIES.replace("[duplicates]\ndate = 2026-11-30", "[duplicates]"))
    with pytest.raises(SeriesError, match=r"unknown field 'duplicates\.link'\. Did you mean 'links'"):
        make_series("vllm/y", text=SERIES + "link = []\n")


def test_a_series_nobody_checked_for_duplicates_can_be_read(make_series):
    assert make_series(text=SERIES.partition("[duplicates]")[0]).duplicates is None


def test_an_unknown_field_is_refused_with_the_nearest_name(make_series):
    with pytest.raises(SeriesError, match=r"unknown field 'titel'\. Did you mean 'title'\?"):
        make_series(text='titel = "x"\n' + SERIES)


def test_malformed_toml_is_refused_with_its_line(make_series):
    with pytest.raises(SeriesError, match=r"series\.toml is not valid TOML: .*line 3"):
        make_series(text='title = "a"\nwhy = "b"\nlinks = 0 1')


def test_an_unknown_series_is_refused_with_the_nearest_names(make_series, paths):
    make_series("vllm/penalties-bin-counts")
    with pytest.raises(UnknownSeriesError, match=r"'vllm/penalty-bin-count'\. Did you mean 'vllm/penalties-bin-counts'"):
        read_series(paths, "vllm/penalty-bin-count")


@pytest.mark.parametrize("name", ["vlm/x", "x", "vllm/", "vllm/X", "vllm/a/b", "vllm/a b", "../x", "vllm/-a"])
def test_what_is_no_id_is_refused(name):
    with pytest.raises(UnknownSeriesError, match="is not a series"):
        parse_id(name)


def test_all_series_are_listed_in_order(make_series, paths):
    make_series("vllm/b")
    make_series("sglang/a")
    make_series("vllm/a")
    assert list_series(paths) == ("sglang/a", "vllm/a", "vllm/b")


def test_a_stack_is_in_the_order_of_applying(make_series):
    make_series("vllm/a")
    make_series("vllm/b", text=SERIES.replace("after = []", 'after = ["vllm/a"]'))
    top = make_series("vllm/c", text=SERIES.replace("after = []", 'after = ["vllm/b", "vllm/a"]'))
    assert [series.id for series in stack(top)] == ["vllm/a", "vllm/b", "vllm/c"]


def test_a_circle_of_series_is_refused(make_series):
    make_series("vllm/a", text=SERIES.replace("after = []", 'after = ["vllm/b"]'))
    top = make_series("vllm/b", text=SERIES.replace("after = []", 'after = ["vllm/a"]'))
    with pytest.raises(SeriesError, match="in a circle: vllm/b -> vllm/a -> vllm/b"):
        stack(top)


def test_a_series_after_one_that_is_not_there_is_refused(make_series):
    top = make_series("vllm/b", text=SERIES.replace("after = []", 'after = ["vllm/gone"]'))
    with pytest.raises(SeriesError, match=r"b/series\.toml: .* there is no series 'vllm/gone'") as caught:
        stack(top)
    assert caught.value.exit_code == 1, "the file is wrong, not what was typed"


def test_a_series_after_one_of_another_engine_is_refused(make_series):
    make_series("sglang/a")
    top = make_series("vllm/b", text=SERIES.replace("after = []", 'after = ["sglang/a"]'))
    with pytest.raises(SeriesError, match="another engine's series"):
        stack(top)


def test_a_port_has_patches_of_its_own(make_series):
    series = make_series(patches={"0001-own.patch": b""}, text=SERIES.replace("ports = []", 'ports = ["0.33.0"]'))
    (series.directory / "ports/0.33.0").mkdir(parents=True)
    (series.directory / "ports/0.33.0/0001-port.patch").write_bytes(b"")
    assert [patch.name for patch in patches_for(series, "0.33.0")] == ["0001-port.patch"]
    assert [patch.name for patch in patches_for(series, "0.24.0")] == ["0001-own.patch"]
    assert [patch.name for patch in patches_for(series, "0.34.0")] == ["0001-own.patch"]
