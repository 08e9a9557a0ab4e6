"""The documents that are made from the policy's model."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

from autogpu.policy import KEYS

ROOT = Path(__file__).resolve().parents[2]


def loaded():
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


generate = loaded()


@pytest.mark.parametrize("name", sorted(generate.documents()))
def test_documents_in_the_checkout_are_those_of_the_model(name):
    assert (ROOT / name).read_text(encoding="utf-8") == generate.documents()[name], "run: make docs"


def test_every_key_has_a_section_in_the_page_that_its_row_leads_to():
    page = generate.page()
    headings = {re.sub(r"[^\w -]", "", title.lower()) for title in re.findall(r"^#### (.+)$", page, re.MULTILINE)}
    assert set(re.findall(r"\]\(#([^)]+)\)", page)) == headings
    assert len(headings) == len(KEYS)


def test_check_tells_a_stale_document_and_writing_mends_it(tmp_path, capsys):
    (tmp_path / "docs").mkdir()
    assert generate.main(["--check"], tmp_path) == 1
    assert capsys.readouterr().out.count("differs from the model") == 3
    assert generate.main([], tmp_path) == 0
    assert generate.main(["--check"], tmp_path) == 0
    (tmp_path / "autogpu.toml.example").write_text("count = 1\n", encoding="utf-8")
    capsys.readouterr()
    assert generate.main(["--check"], tmp_path) == 1
    assert capsys.readouterr().out == "autogpu.toml.example: differs from the model\n"
