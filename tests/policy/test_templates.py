"""The example file, the project template and the JSON schema agree with the keys of the policy."""

import json
import sys

import jsonschema
import pytest

from autogpu.policy import KEYS, Policy
from autogpu.policy.templates import example, template
from tests.policy.test_layers import OTHERS, ROOT

toml = pytest.importorskip("tomllib" if sys.version_info >= (3, 11) else "tomli")


@pytest.fixture(scope="module")
def validator():
    described = json.loads((ROOT / "docs" / "autogpu.schema.json").read_text(encoding="utf-8"))
    # Old releases of jsonschema, as on Python 3.7, lack draft 2020-12. The schema uses only keywords of draft 7.
    kind = getattr(jsonschema, "Draft202012Validator", jsonschema.Draft7Validator)
    kind.check_schema(described)
    return kind(described)


@pytest.mark.parametrize("layer", ["project", "user", "system"])
def test_example_file_sets_exactly_the_defaults(workplace, layer):
    {"project": workplace.autogpu_toml, "user": workplace.user, "system": workplace.system}[layer](example())
    resolved = workplace.resolve()
    assert (resolved.policy, resolved.problems, resolved.system_notes) == (Policy(), (), ())
    said = {setting.key for setting in resolved.settings.values() if setting.origin.layer.value == layer}
    assert said == {key.dotted for key in KEYS if layer == "system" or not key.system_only}


def test_example_file_has_every_key_with_a_comment():
    lines = example().splitlines()
    for key in KEYS:
        said = f"{key.name} = {key.written(key.default)} "
        assert [line for line in lines if line.startswith(said) and "# " in line], key.dotted
    assert max(map(len, lines)) <= 110


def test_example_file_fits_the_schema(validator):
    validator.validate(toml.loads(example()))


@pytest.mark.parametrize(
    ("dotted", "value"),
    [
        *((dotted, toml) for dotted, (toml, *_) in OTHERS.items()),
        ("limits.per_user", "2"),
        ("limits.per_user", "{default = 2, staff = 4}"),
    ],
)
def test_valid_values_fit_the_schema(validator, dotted, value):
    section, _, name = dotted.rpartition(".")
    validator.validate(toml.loads((f"[{section}]\n" if section else "") + f"{name} = {value}"))


@pytest.mark.parametrize(
    "text",
    [
        "count = 2",
        "[select]\ncuont = 2",
        "[select]\ncount = -1",
        "[select]\nbusy = 'shared'",
        "[memory]\ngrowth = 1",
        "[memory]\nvirtual_gpus = 0",
        "[limits]\nper_user = 'two'",
        "[report]\nlevel = 'loud'",
        "[gpu]\n",
        "select = 3",
    ],
)
def test_schema_and_reader_refuse_the_same_files(validator, workplace, text):
    with pytest.raises(jsonschema.ValidationError):
        validator.validate(toml.loads(text))
    workplace.autogpu_toml(text)
    assert len(workplace.problems()) == 1


@pytest.mark.parametrize("text", ["count = '2'", "devices = '0,2'", "busy = 'Wait'"])
def test_schema_is_stricter_than_the_reader_as_documented(validator, workplace, text):
    workplace.autogpu_toml(f"[select]\n{text}\n")
    assert workplace.problems() == []
    with pytest.raises(jsonschema.ValidationError):
        validator.validate(toml.loads(f"[select]\n{text}\n"))


def test_project_template_sets_nothing_and_has_every_project_key(workplace):
    workplace.autogpu_toml(template())
    resolved = workplace.resolve()
    assert (resolved.policy, resolved.problems) == (Policy(), ())
    commented = [line for line in template().splitlines() if line.startswith("# ")]
    for key in KEYS:
        assert any(line.startswith(f"# {key.name} = ") for line in commented) is not key.system_only, key.dotted
