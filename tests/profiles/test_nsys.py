"""The runner against an nsys that behaves badly: missing, too old, killed, silent, without its importer or its libraries."""

import os
import shutil
from pathlib import Path

import pytest

from harness.errors import ProfileError
from harness.profiles import nsys as module
from harness.profiles.nsys import Nsys, export_report, locate_nsys, profile_command, record

NODES = Path(__file__).parent / "fixtures" / "decode-graph-nodes.sqlite"
HELP = "--cuda-graph-trace=<granularity>"


def _script(path: Path, body: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


def _nsys(
    folder: Path, *, profile: str = "exit 0", version: str = "NVIDIA Nsight Systems version 2025.3.1.0", known: str = HELP
) -> Path:
    """A fake of the command line: `profile` is run with $report, the path that --output gives, and the command in $@."""
    return _script(
        folder / "bin" / "nsys",
        f"""
case "$1" in
  --version) echo '{version}'; exit 0 ;;
  export)
    for one in "$@"; do case "$one" in --output=*) target="${{one#--output=}}" ;; esac; source="$one"; done
    [ -s "$source" ] || exit 3
    cp '{NODES}' "$target"; exit 0 ;;
esac
[ "$2" = "--help" ] && {{ echo '{known}'; exit 0; }}
shift
while [ "$1" != "--output" ]; do shift; done
report="$2"; shift 2
{profile}
""",
    )


@pytest.fixture
def unnamed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(module.NSYS_VARIABLE, raising=False)
    monkeypatch.delenv(module.LIBRARIES_VARIABLE, raising=False)


def _record(folder: Path, body: str, *, timeout_s: float = 20.0, ranged: bool = True) -> Path:
    nsys = Nsys(_nsys(folder, profile=body), "2025.3", None)
    return record(nsys, ["echo", "hi"], environment=dict(os.environ), folder=folder / "out", timeout_s=timeout_s, ranged=ranged)


@pytest.mark.usefixtures("unnamed")
class TestLocate:
    def test_missing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module, "find_nsys", lambda: None)
        with pytest.raises(ProfileError, match=r"nsys was not found.*--from FILE\.sqlite"):
            locate_nsys()

    def test_given(self, tmp_path: Path) -> None:
        assert locate_nsys(_nsys(tmp_path)) == Nsys(tmp_path / "bin" / "nsys", "2025.3.1.0", None)

    def test_named_by_the_environment(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv(module.NSYS_VARIABLE, str(_nsys(tmp_path)))
        monkeypatch.setenv(module.LIBRARIES_VARIABLE, str(tmp_path))
        assert locate_nsys() == Nsys(tmp_path / "bin" / "nsys", "2025.3.1.0", tmp_path)

    def test_too_old(self, tmp_path: Path) -> None:
        with pytest.raises(ProfileError, match=r"\(2020\.1\) is too old: it has no --cuda-graph-trace"):
            locate_nsys(_nsys(tmp_path, version="version 2020.1", known="--trace"))

    def test_not_an_nsys(self, tmp_path: Path) -> None:
        with pytest.raises(ProfileError, match="is no nsys that runs here"):
            locate_nsys(_script(tmp_path / "nsys", "echo hello"))

    def test_no_such_folder_of_libraries(self, tmp_path: Path) -> None:
        with pytest.raises(ProfileError, match="folder of libraries for nsys, does not exist"):
            locate_nsys(_nsys(tmp_path), tmp_path / "none")


class TestRecord:
    def test_the_command_line(self, tmp_path: Path) -> None:
        command = profile_command(Nsys(Path("nsys"), "1", None), tmp_path, ["python", "-m", "x"], ranged=True)
        assert command[-3:] == ("python", "-m", "x")
        assert {"--cuda-graph-trace=node", "--sample=none", "--cpuctxsw=none"} <= set(command)
        assert {"--capture-range=cudaProfilerApi", "--capture-range-end=stop"} <= set(command)
        whole = profile_command(Nsys(Path("nsys"), "1", None), tmp_path, ["x"], ranged=False)
        assert not [one for one in whole if "capture-range" in one]

    def test_a_report(self, tmp_path: Path) -> None:
        assert _record(tmp_path, 'echo x > "$report.nsys-rep"') == tmp_path / "out" / "recording.nsys-rep"

    def test_a_raw_stream_only(self, tmp_path: Path) -> None:
        assert _record(tmp_path, 'echo x > "$report.qdstrm"') == tmp_path / "out" / "recording.qdstrm"

    def test_the_range_never_began(self, tmp_path: Path) -> None:
        with pytest.raises(ProfileError, match=r"left no report.*never began.*--whole.*(?s:.)*said this"):
            _record(tmp_path, "echo said this")

    def test_an_old_report_does_not_pass_for_a_new_one(self, tmp_path: Path) -> None:
        _record(tmp_path, 'echo x > "$report.nsys-rep"')
        with pytest.raises(ProfileError, match="left no report"):
            _record(tmp_path, "exit 0")

    def test_killed(self, tmp_path: Path) -> None:
        with pytest.raises(ProfileError, match=r"killed \(signal 9\).*cut off"):
            _record(tmp_path, 'echo x > "$report.qdstrm"; kill -9 $$')

    def test_the_command_failed(self, tmp_path: Path) -> None:
        with pytest.raises(ProfileError, match=r"failed with exit code 7.*(?s:.)*out of memory"):
            _record(tmp_path, "echo CUDA out of memory; exit 7")

    def test_the_command_hangs(self, tmp_path: Path) -> None:
        with pytest.raises(ProfileError, match="ran longer than 1 s and was stopped"):
            _record(tmp_path, "exec sleep 60", timeout_s=1.0)


class TestExport:
    def test_a_report(self, tmp_path: Path) -> None:
        report = tmp_path / "run.nsys-rep"
        report.write_text("x")
        made = export_report(Nsys(_nsys(tmp_path), "1", None), report, tmp_path / "out")
        assert made.read_bytes() == NODES.read_bytes()

    def test_a_damaged_report(self, tmp_path: Path) -> None:
        (tmp_path / "run.nsys-rep").write_text("")
        with pytest.raises(ProfileError, match=r"\(export\) failed with exit code 3"):
            export_report(Nsys(_nsys(tmp_path), "1", None), tmp_path / "run.nsys-rep", tmp_path / "out")

    @pytest.mark.parametrize("place", ["bin", "host-linux-x64", "linux-desktop-glibc_2_11_3-x64"])
    def test_a_raw_stream_goes_through_the_importer_beside_nsys(self, tmp_path: Path, place: str) -> None:
        nsys = _nsys(tmp_path)
        _script(tmp_path / place / "QdstrmImporter", '[ -s "$2" ] && echo "$LD_LIBRARY_PATH" > "$4"')
        (tmp_path / "run.qdstrm").write_text("x")
        libraries = tmp_path / "libraries"
        libraries.mkdir()
        made = export_report(Nsys(nsys, "1", libraries), tmp_path / "run.qdstrm", tmp_path / "out")
        assert made == tmp_path / "out" / "run.sqlite"
        assert (tmp_path / "out" / "run.nsys-rep").read_text().startswith(str(libraries))

    def test_no_importer(self, tmp_path: Path) -> None:
        (tmp_path / "run.qdstrm").write_text("x")
        with pytest.raises(ProfileError, match="no QdstrmImporter lies beside it"):
            export_report(Nsys(_nsys(tmp_path), "1", None), tmp_path / "run.qdstrm", tmp_path / "out")

    def test_a_library_that_the_importer_misses(self, tmp_path: Path) -> None:
        nsys = _nsys(tmp_path)
        said = "QdstrmImporter: error while loading shared libraries: libdw.so.1: cannot open shared object file"
        _script(tmp_path / "bin" / "QdstrmImporter", f"echo '{said}' >&2; exit 127")
        (tmp_path / "run.qdstrm").write_text("x")
        with pytest.raises(ProfileError, match=r"needs libdw\.so\.1.*libdw1.*--nsys-libraries"):
            export_report(Nsys(nsys, "1", None), tmp_path / "run.qdstrm", tmp_path / "out")

    def test_a_stream_that_is_cut_off(self, tmp_path: Path) -> None:
        nsys = _nsys(tmp_path)
        _script(tmp_path / "bin" / "QdstrmImporter", "exit 0")
        (tmp_path / "run.qdstrm").write_text("x")
        with pytest.raises(ProfileError, match="may be cut off"):
            export_report(Nsys(nsys, "1", None), tmp_path / "run.qdstrm", tmp_path / "out")


@pytest.mark.usefixtures("unnamed")
class TestCommands:
    """The two commands as they are typed, charts left out (test_report.py draws them)."""

    def _run(self, *words: str) -> int:
        from harness.cli import main

        return main(["--quiet", *words])

    def test_recording_to_table(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        nsys = _nsys(tmp_path, profile='"$@" && echo x > "$report.nsys-rep"')
        out = tmp_path / "result"
        code = self._run(
            *("profile", "--nsys", str(nsys), "--out", str(out), "--no-charts", "--label", "toy"),
            *("--", "sh", "-c", "echo measured"),
        )
        assert code == 0
        assert capsys.readouterr().out.startswith("toy: 1.033 ms busy on GPU 0, 162 kernels; attention 29.9 % of it")
        assert {one.name for one in out.iterdir()} >= {"profile.json", "report.md", "recording.log", "recording.sqlite"}
        assert "measured" in (out / "recording.log").read_text()

    def test_the_command_does_not_see_this_checkout_on_its_path(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        from harness.paths import Paths

        monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Paths.of().root), "/elsewhere"]))
        nsys = _nsys(tmp_path, profile='"$@" && echo x > "$report.nsys-rep"')
        out = tmp_path / "result"
        words = (
            "profile",
            "--nsys",
            str(nsys),
            "--out",
            str(out),
            "--no-charts",
            "--",
            "sh",
            "-c",
            'echo "path $PYTHONPATH"; pwd',
        )
        assert self._run(*words) == 0
        assert (out / "recording.log").read_text().splitlines() == ["path /elsewhere", str(out)]

    def test_from_a_file_and_their_difference(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        for name in ("a", "b"):
            assert (
                self._run("profile", "--from", str(NODES), "--out", str(tmp_path / name), "--no-charts", "--label", name) == 0
            )
        capsys.readouterr()
        out = tmp_path / "difference"
        assert self._run("diff", str(tmp_path / "a"), str(tmp_path / "b"), "--out", str(out), "--no-charts") == 0
        assert capsys.readouterr().out.startswith(
            "a -> b: busy 1.033 -> 1.033 ms (+0.0 %); 22 kernels in both, 0 new, 0 vanished"
        )
        assert (out / "report.md").is_file()

    def test_a_report_file_is_exported_first(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        report = tmp_path / "mine.nsys-rep"
        report.write_text("x")
        nsys = _nsys(tmp_path)
        assert (
            self._run("profile", "--from", str(report), "--nsys", str(nsys), "--out", str(tmp_path / "o"), "--no-charts") == 0
        )
        assert "162 kernels" in capsys.readouterr().out

    @pytest.mark.parametrize(
        ("words", "message"),
        [
            (["profile"], "give one of --from FILE, --workload NAME, or a command"),
            (["profile", "--from", "x", "--", "sh"], "given: --from and a command"),
            (["profile", "--from", "/none.sqlite", "--ncu", "k"], "--ncu runs a command"),
            (["profile", "--from", "/none.sqlite"], "there is no profile at /none.sqlite"),
            (["profile", "--from", "/none.nsys-rep"], "there is no recording at /none.nsys-rep"),
            (["profile", "--from", "/none", "--top", "0"], "--top is 0"),
            (["diff", "/none", "/none"], "there is no profile at /none"),
            (["profile", "--", "vllm", "serve", "x"], "vllm bench latency and vllm bench throughput can be profiled"),
        ],
    )
    def test_usage(self, tmp_path: Path, words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
        assert self._run("--state", str(tmp_path), *words) == 2
        assert message in capsys.readouterr().err

    def test_no_gpu_and_no_nsys(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setattr(module, "find_nsys", lambda: None)
        assert self._run("--state", str(tmp_path), "profile", "--", "sh", "-c", "true") == 1
        assert "Recordings made elsewhere can be read without it" in capsys.readouterr().err


def test_the_fixture_is_small_and_says_nothing_of_its_host() -> None:
    fixtures = Path(__file__).parent / "fixtures"
    assert sum(one.stat().st_size for one in fixtures.iterdir()) < 300 * 1024
    for one in fixtures.glob("*.sqlite"):
        content = one.read_bytes()
        for word in (b"/root", b"/home", b"/tmp", b"/opt", b"GPU-", b"ENVIRONMENT", b"COMMAND"):
            assert word not in content, (one.name, word)
    assert shutil.which("sh")
