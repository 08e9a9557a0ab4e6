"""A remedy that installs autogpu again names where it came from."""

from __future__ import annotations

import json

import pytest

from autogpu.install.source import pip_source


@pytest.mark.parametrize(
    ("direct_url", "source"),
    [
        (None, "autogpu"),
        ({"url": "file:///home/me/clone", "dir_info": {}}, "/home/me/clone"),
        ({"url": "file:///home/me/my%20clone", "dir_info": {"editable": True}}, "'/home/me/my clone'"),
        ({"url": "https://example.org/autogpu.whl", "archive_info": {}}, "https://example.org/autogpu.whl"),
        ({"url": "https://example.org/autogpu", "vcs_info": {"vcs": "git"}}, "git+https://example.org/autogpu"),
        ([], "autogpu"),
    ],
    ids=["index", "folder", "editable", "archive", "repository", "broken"],
)
def test_what_pip_needs_to_install_it_again(tmp_path, monkeypatch, direct_url, source):
    folder = tmp_path / "autogpu-0.1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Name: autogpu\nVersion: 0.1.0\n")
    if direct_url is not None:
        (folder / "direct_url.json").write_text(json.dumps(direct_url))
    monkeypatch.setattr("sys.path", [str(tmp_path)])
    assert pip_source() == source


def test_what_pip_did_not_install_goes_by_its_name(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.path", [str(tmp_path)])
    assert pip_source() == "autogpu"
