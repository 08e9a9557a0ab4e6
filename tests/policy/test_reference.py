from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import jsonschema
import pytest

from autogpu.policy import KEYS, Policy, reference
from tests.policy.test_layers import OTHERS

ROOT = Path(__file__).resolve().parent.parent.parent
toml = pytest.importorskip("tomllib" if sys.version_info >= (3, 11) else "tomli")


@pytest.fixture(scope="module")
def validator():
    schema = json.loads(reference.schema())
    # The class is older than draft 2020-12 on Python 3.7 with old releases; what is used here is in both.
    kind = getattr(jsonschema, "Draft202012Validator", jsonschema.Draft7Validator)
    kind.check_schema(schema)
    return kind(schema)


@pytest.mark.parametrize("name", sorted(reference.documents()))
def test_documents_in_the_checkout_are_those_of_the_model(name):
    assert (ROOT / name).read_text(encoding="utf-8") == reference.documents()[name], (
        "run: python -m autogpu.policy.reference"
    )


@pytest.mark.parametrize("layer", ["project", "user", "system"])
def test_the_example_says_exactly_the_defaults(workplace, layer):
    {"project": workplace.autogpu_toml, "user": workplace.user, "system": workplace.system}[layer](reference.example())
    resolved = workplace.resolve()
    assert (resolved.policy, resolved.problems, resolved.system_notes) == (Policy(), (), ())
    said = {setting.key for setting in resolved.settings.values() if setting.origin.layer == layer}
    assert said == {key.dotted for key in KEYS if layer == "system" or not key.system_only}


def test_every_key_stands_in_the_example_with_a_comment():
    lines = reference.example().splitlines()
    for key in KEYS:
        said = f"{key.name} = {key.written(key.default)} "
        assert [line for line in lines if line.startswith(said) and "# " in line], key.dotted
    assert max(map(len, lines)) <= 110


def test_the_example_fits_the_schema(validator):
    validator.validate(toml.loads(reference.example()))


@pytest.mark.parametrize("key", KEYS, ids=lambda key: key.dotted)
def test_the_example_of_each_key_is_good(validator, workplace, key):
    text = (f"[{key.section}]\n" if key.section else "") + key.example + "\n"
    validator.validate(toml.loads(text))
    workplace.system(text)
    resolved = workplace.resolve()
    assert resolved.problems == ()
    assert resolved.settings[key.dotted].origin.layer == "system"
    assert getattr(resolved.policy, key.attribute) != key.default


@pytest.mark.parametrize("key", [key for key in KEYS if key.dotted in OTHERS], ids=lambda key: key.dotted)
def test_the_schema_takes_what_is_read(validator, key):
    text = (f"[{key.section}]\n" if key.section else "") + f"{key.name} = {OTHERS[key.dotted][0]}\n"
    validator.validate(toml.loads(text))


@pytest.mark.parametrize(
    "text",
    [
        "enabled = 'yes'",
        "count = 2",
        "locked = 'select.count'",
        "[select]\ncuont = 2",
        "[select]\ncount = -1",
        "[select]\ncount = '2'",
        "[select]\nneed = 6",
        "[select]\nneed = '6'",
        "[select]\nneed = '6 apples'",
        "[select]\ndevices = '0'",
        "[select]\ndevices = ['0,1']",
        "[select]\ndevices = [-1]",
        "[select]\nbusy = 'shared'",
        "[select]\nwait = 30",
        "[select]\nwait = '30'",
        "[memory]\ngrowth = 1",
        "[memory]\nlimit = 0.5",
        "[memory]\nvirtual_gpus = 0",
        "[limits]\nper_user = 'two'",
        "[report]\nlevel = 'loud'",
        "[gpu]\n",
        "select = 3",
    ],
)
def test_the_schema_and_the_reader_refuse_the_same(validator, workplace, text):
    with pytest.raises(jsonschema.ValidationError):
        validator.validate(toml.loads(text))
    workplace.autogpu_toml(text)
    assert len(workplace.problems()) == 1


def test_every_key_has_a_section_in_the_page_that_its_row_leads_to():
    page = reference.page()
    headings = {re.sub(r"[^\w -]", "", title.lower()) for title in re.findall(r"^#### (.+)$", page, re.MULTILINE)}
    assert set(re.findall(r"\]\(#([^)]+)\)", page)) == headings
    assert len(headings) == len(KEYS)


def test_check_tells_a_stale_document_and_writing_mends_it(tmp_path, monkeypatch, capsys):
    checkout = tmp_path / "checkout"
    (checkout / "docs").mkdir(parents=True)
    (checkout / "pyproject.toml").touch()
    monkeypatch.setattr(reference, "__file__", str(checkout / "autogpu" / "policy" / "reference.py"))
    assert reference.main(["--check"]) == 1
    assert capsys.readouterr().out.count("differs from the model") == 3
    assert reference.main([]) == 0
    assert reference.main(["--check"]) == 0
    (checkout / "autogpu.toml.example").write_text("count = 1\n", encoding="utf-8")
    capsys.readouterr()
    assert reference.main(["--check"]) == 1
    assert capsys.readouterr().out == "autogpu.toml.example: differs from the model\n"


def test_nothing_is_written_outside_a_checkout(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(reference, "__file__", str(tmp_path / "autogpu" / "policy" / "reference.py"))
    assert reference.main([]) == 2
    assert list(tmp_path.glob("*.example")) == []
    assert capsys.readouterr().err.endswith("is not a checkout of autogpu\n")
