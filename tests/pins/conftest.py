"""A small package index on loopback, which can misbehave."""

from __future__ import annotations

import hashlib
import io
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from harness.paths import Paths
from harness.pins.settings import IndexSettings
from harness.progress import Progress


@dataclass
class Index:
    """`files` by (project, file name). `cuts`: for each of the next file responses, the bytes after which it breaks off."""

    url: str = ""
    files: dict[tuple[str, str], bytes] = field(default_factory=dict)
    hashes: bool = True
    wrong_hashes: bool = False
    ranges: bool = True
    cuts: list[int] = field(default_factory=list)
    # (path, Range header) of every request for a file
    requests: list[tuple[str, str | None]] = field(default_factory=list)

    def page(self, project: str) -> str:
        lines = []
        for (owner, name), content in self.files.items():
            if owner == project:
                digest = hashlib.sha256(b"other" if self.wrong_hashes else content).hexdigest()
                fragment = f"#sha256={digest}" if self.hashes else ""
                lines.append(f'<a href="/files/{owner}/{name}{fragment}">{name}</a>')
        return "<!DOCTYPE html><html><body>" + "\n".join(lines) + "</body></html>"


def handler_for(index: Index) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_args) -> None:
            pass

        def do_GET(self) -> None:
            parts = self.path.strip("/").split("/")
            if parts[0] == "simple" and any(owner == parts[1] for owner, _ in index.files):
                self.answer(200, index.page(parts[1]).encode(), {"Content-Type": "text/html"})
            elif parts[0] == "files" and (parts[1], parts[2]) in index.files:
                self.file(index.files[parts[1], parts[2]])
            else:
                self.answer(404, b"", {})

        def file(self, content: bytes) -> None:
            asked = self.headers.get("Range")
            index.requests.append((self.path, asked))
            start = int(asked.removeprefix("bytes=").removesuffix("-")) if asked and index.ranges else 0
            if start and start >= len(content):
                self.answer(416, b"", {})
                return
            cut = index.cuts.pop(0) if index.cuts else None
            self.answer(206 if start else 200, content[start:], {"Content-Type": "application/octet-stream"}, cut)

        def answer(self, status: int, content: bytes, headers: dict[str, str], cut: int | None = None) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content if cut is None else content[:cut])
            if cut is not None:
                self.close_connection = True

    return Handler


@pytest.fixture
def index(monkeypatch):
    index = Index()
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler_for(index))
    index.url = f"http://127.0.0.1:{server.server_port}/simple/"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    monkeypatch.setattr("harness.pins.index.read_settings", lambda: make_settings(index.url))
    monkeypatch.setattr("harness.pins.download.time.sleep", lambda _seconds: None)
    yield index
    server.shutdown()
    server.server_close()
    thread.join()


def make_settings(*index_urls: str, find_links: tuple[str, ...] = ()) -> IndexSettings:
    return IndexSettings(
        index_urls=index_urls,
        find_links=find_links,
        trusted_hosts=(),
        certificates=None,
        client_certificate=None,
        proxy=None,
        timeout=5.0,
    )


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    return Paths.of(root=tmp_path / "checkout", state=tmp_path / "state")


@pytest.fixture
def said() -> io.StringIO:
    """What the progress of these tests printed."""
    return io.StringIO()


@pytest.fixture
def progress(said: io.StringIO) -> Progress:
    return Progress(said)


@pytest.fixture
def settings_for():
    return make_settings
