from __future__ import annotations

import pytest

from harness.pins.settings import from_options, read_settings


@pytest.fixture
def only_this_configuration(tmp_path, monkeypatch):
    """Pip sees one configuration file and no PIP_* variable but ours."""
    for name in ("CERT", "INDEX_URL", "EXTRA_INDEX_URL", "FIND_LINKS", "DEFAULT_TIMEOUT", "NO_INDEX", "TRUSTED_HOST"):
        monkeypatch.delenv(f"PIP_{name}", raising=False)
    path = tmp_path / "pip.conf"
    monkeypatch.setenv("PIP_CONFIG_FILE", str(path))
    return path


def test_the_stronger_source_wins():
    settings = from_options(
        {
            ("global", "index-url"): "https://weak.example/simple",
            (":env:", "index-url"): "https://strong.example/simple",
            ("global", "extra-index-url"): "https://one.example/simple https://two.example/simple/\nfile:///three",
            ("install", "find-links"): "/wheels /missing",
            ("global", "trusted-host"): "strong.example:8080",
            ("global", "default-timeout"): "180",
        }
    )
    assert settings.index_urls == (
        "https://strong.example/simple/",
        "https://one.example/simple/",
        "https://two.example/simple/",
        "file:///three/",
    )
    assert settings.find_links == ("/wheels", "/missing")
    assert settings.trusted_hosts == ("strong.example:8080",)
    assert settings.timeout == 180.0


def test_without_settings_there_is_the_default_index():
    settings = from_options({})
    assert len(settings.index_urls) == 1
    assert settings.index_urls[0].startswith("https://")


@pytest.mark.parametrize(("word", "searched"), [("1", 0), ("true", 0), ("false", 1), ("0", 1)])
def test_no_index_leaves_the_find_links_alone(word, searched):
    settings = from_options({("global", "no-index"): word, ("global", "find-links"): "/wheels"})
    assert (len(settings.index_urls), settings.find_links) == (searched, ("/wheels",))


def test_pips_files_and_variables_are_read(only_this_configuration, monkeypatch):
    only_this_configuration.write_text(
        "[global]\nindex-url = https://file.example/simple\ncert = /certificates.pem\n[install]\nfind-links =\n  /a\n  /b's\n",
        encoding="utf-8",
    )
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "https://variable.example/simple")
    settings = read_settings()
    assert settings.index_urls[0] == "https://file.example/simple/"
    assert "https://variable.example/simple/" in settings.index_urls
    assert settings.certificates == "/certificates.pem"
    assert settings.find_links == ("/a", "/b's")


def test_without_pip_the_variables_count(monkeypatch):
    monkeypatch.setattr("harness.pins.settings.sys.executable", "/bin/false")
    monkeypatch.setenv("PIP_INDEX_URL", "https://variable.example/simple")
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "")
    assert read_settings().index_urls == ("https://variable.example/simple/",)
