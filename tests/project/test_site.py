"""Check that the Chinese pages of the site have no English text around their content."""

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tests.support import environments
from tests.support.environments import ROOT

toml = pytest.importorskip("tomllib" if sys.version_info >= (3, 11) else "tomli")


class Words(HTMLParser):
    """Collect the words of a page's header and footer, and of attributes that a browser or screen reader presents."""

    def __init__(self):
        super().__init__()
        self.said, self.around = set(), 0

    def handle_starttag(self, tag, attrs):
        names = {"title", "aria-label", "alt", "placeholder"}
        if ("name", "description") in attrs:
            names.add("content")
        self.said |= {value for name, value in attrs if name in names}
        self.around += tag in ("header", "footer")

    def handle_endtag(self, tag):
        self.around -= tag in ("header", "footer")

    def handle_data(self, data):
        if self.around and self.lasttag != "script":
            self.said.add(" ".join(data.split()))


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Return the folder of the site, built as ``make site`` does."""
    wanted = tuple(toml.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]["docs"])
    python = environments.environment(Path(sys.executable).resolve(), wanted, with_autogpu=False)
    folder = tmp_path_factory.mktemp("site")
    command = [str(python), "-B", "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(folder)]
    environ = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "TMPDIR": str(tmp_path_factory.mktemp("tmp"))}
    subprocess.run(command, cwd=ROOT, env=environ, timeout=250, check=True)
    return folder


@pytest.mark.slow
def test_chinese_pages_have_no_english_around_their_text(site):
    pages, words = sorted((site / "zh-CN").glob("*.html")), Words()
    for page in pages:
        words.feed(page.read_text(encoding="utf-8"))
    assert len(pages) == len(list((ROOT / "docs" / "zh-CN").glob("*.md")))
    in_english = {text for text in words.said if re.search("[A-Za-z]", text) and not re.search("[\u4e00-\u9fff]", text)}
    assert in_english == {"autogpu", "Material for MkDocs"}
