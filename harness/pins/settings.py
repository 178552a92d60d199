"""The user's pip settings, so that files come from where pip would take them."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from unearth import PackageFinder

__all__ = ["IndexSettings", "from_options", "read_settings"]

# Sections of pip's configuration that hold for a download, the stronger one later (pip's own order).
SECTIONS = ("global", "install", "download", ":env:")
FALSE_WORDS = frozenset({"0", "false", "no", "off", ""})


@dataclass(frozen=True, slots=True)
class IndexSettings:
    """Where files are looked for. `timeout` is in seconds without an answer from the server."""

    index_urls: tuple[str, ...]
    find_links: tuple[str, ...]
    trusted_hosts: tuple[str, ...]
    certificates: str | None
    client_certificate: str | None
    proxy: str | None
    timeout: float

    @property
    def sources(self) -> tuple[str, ...]:
        """Everything that is searched, for messages."""
        return (*self.index_urls, *self.find_links)


def read_settings() -> IndexSettings:
    """What pip of this interpreter is configured to do: its files and the PIP_* variables.

    Without pip in this interpreter (an environment that uv made) only the PIP_* variables are known.
    """
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "config", "list"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode == 0:
        return from_options(_parse(result.stdout))
    variables = {name.lower(): value for name, value in os.environ.items() if name.startswith("PIP_") and value}
    return from_options({(":env:", name.removeprefix("pip_").replace("_", "-")): value for name, value in variables.items()})


def from_options(options: Mapping[tuple[str, str], str]) -> IndexSettings:
    """Options by (section, name), as `pip config list` names them, to settings."""
    chosen: dict[str, str] = {}
    for section in SECTIONS:
        chosen |= {name: value for (owner, name), value in options.items() if owner == section}
    index_urls: tuple[str, ...] = ()
    if chosen.get("no-index", "").lower() in FALSE_WORDS:
        # unearth knows the default index, so that no host's name has to stand here
        first = chosen.get("index-url") or PackageFinder().sources[0]["url"]
        index_urls = (first, *chosen.get("extra-index-url", "").split())
    return IndexSettings(
        index_urls=tuple(url.rstrip("/") + "/" for url in index_urls),
        find_links=tuple(chosen.get("find-links", "").split()),
        trusted_hosts=tuple(chosen.get("trusted-host", "").split()),
        certificates=chosen.get("cert") or None,
        client_certificate=chosen.get("client-cert") or None,
        proxy=chosen.get("proxy") or None,
        timeout=float(chosen.get("timeout") or chosen.get("default-timeout") or 15),
    )


def _parse(listing: str) -> dict[tuple[str, str], str]:
    """Lines like `global.index-url='https://...'`; the value is a Python literal."""
    options = {}
    for line in listing.splitlines():
        key, separator, value = line.partition("=")
        section, _, name = key.rpartition(".")
        if separator and section:
            options[section, name] = str(ast.literal_eval(value))
    return options
