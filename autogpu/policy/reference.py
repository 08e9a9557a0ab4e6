"""The example file, the reference page and the JSON schema, made from the model.

``python -m autogpu.policy.reference`` writes them into the checkout; ``--check`` compares and exits 1.
"""

from __future__ import annotations

import json
import re
import sys
import textwrap
from pathlib import Path

from autogpu.policy.model import KEYS, SECTIONS, SYSTEM_FILE, Key

_COLUMN = 24
_WIDTH = 110

_EXAMPLE_HEAD = """\
# Every key of an autogpu policy, with its default. Put this into autogpu.toml beside your scripts, or into
# ~/.config/autogpu/autogpu.toml for all of them, and keep only the lines that you change.
"""

_TEMPLATE_HEAD = """\
# Which GPU the scripts in and below this folder get, and how much of its memory: a policy for autogpu.
# Every line is a default. Take the first "# " away from those that you change, and delete the others.
# `autogpu config` shows what holds, and `autogpu config check` whether this file can be read.
"""

_PAGE_HEAD = """\
# Policy reference

A policy says which GPU a TensorFlow process gets and how much of its memory. Nobody has to write one: without
any file the process gets the idlest GPU, and memory grows as it is needed. `autogpu config` prints what holds
for you and where each value was said; `autogpu init` writes a file to start from.

## Where it can be said

The lower in this table, the stronger. Each key is decided on its own: a file that sets `count` leaves the
rest to the layers above it.

| Layer | Place | For |
|---|---|---|
| default | built in | everyone |
| system | `{system}` | this host |
| user | `$XDG_CONFIG_HOME/autogpu/autogpu.toml` (`~/.config/autogpu/autogpu.toml`) | all that you run |
| project | `autogpu.toml`, or `[tool.autogpu]` in `pyproject.toml` | the scripts below that folder |
| environment | `AUTOGPU_COUNT`, `AUTOGPU_LIMIT`, ... | one shell or one process |
| command line | `autogpu run --count 2 -- python train.py` | one command |

**Which project file.** The nearest one, going up from the script's folder; if there is none, going up from
the working directory. The search ends at your home folder or at the root; both are looked at. In one folder
`autogpu.toml` wins over `pyproject.toml`. `AUTOGPU_POLICY=FILE` names the project file outright, and
`AUTOGPU_POLICY=/dev/null` means none.

**Whose file counts.** A project file that was found counts only if it and its folder belong to you or to
root, and nobody else can write them; the same is asked of every link on the way to it. A group that bears its
owner's name and has no other member is not somebody else. Any other file is passed over with one line: what
somebody left in a shared folder must not steer your jobs. A file that `AUTOGPU_POLICY` names is not asked for
its owner.

**Locks.** The system file may list keys in `locked`. No other layer changes those; one that tries is told so.

**The environment.** Every key has one variable. An empty one counts as unset. Lists are separated by commas;
`none` empties a list and takes back a `need` or a `limit`. For yes and no, `1`, `true`, `yes`, `on` and `0`,
`false`, `no`, `off` will do. `AUTOGPU=0` switches autogpu off for one process, and nothing stands above that.

**Mistakes.** What can't be read is left out and the rest holds; TensorFlow is imported in any case. All
mistakes are reported at once, each with file and line, what is allowed, the nearest known name, and what
holds instead. Names in the system file that this version does not know are shown by `autogpu doctor` alone,
since one host may carry several versions. Nothing in a policy names code to run.

The same keys are described for editors in [autogpu.schema.json](autogpu.schema.json): put `#:schema
./docs/autogpu.schema.json` (or its address) on the first line of a file.

## How values are written

| | Written | Meaning |
|---|---|---|
| memory | `"6GiB"`, `"512 MiB"`, `"1.5GiB"`, `"8G"` | `KiB`, `MiB`, `GiB`, `TiB`, with or without `iB`: powers of 1024 |
| | `"8GB"` | `KB`, `MB`, `GB`, `TB`: powers of 1000 |
| | `8589934592` | bytes, from 1048576 on; a smaller bare number is refused, since it was meant with a unit |
| share | `"50%"` | of the GPU's memory; above 0, up to 100 |
| time | `"30m"`, `"90s"`, `"2h"`, `"1h30m"`, `"1d"`, `"0"` | the unit is needed, except for 0 |

## Keys

| Key | Default | Variable | |
|---|---|---|---|
"""  # noqa: E501


def example() -> str:
    """The text of ``autogpu.toml.example``: every key with its default."""
    parts = [_EXAMPLE_HEAD]
    for section in SECTIONS:
        parts.append(f"\n[{section}]\n" if section else "\n")
        parts.append(_example_lines([key for key in KEYS if key.section == section]))
    return "".join(parts)


def template() -> str:
    """A project's own file to start from, in which nothing is set."""
    parts = [_TEMPLATE_HEAD]
    for section in SECTIONS:
        keys = [key for key in KEYS if key.section == section and not key.system_only]
        if keys:
            lines = _example_lines(keys).splitlines()
            parts.append(f"\n[{section}]\n" if section else "\n")
            parts += [f"# {line}\n" for line in lines]
    return "".join(parts)


def page() -> str:
    """The text of ``docs/policy.md``."""
    parts = [_PAGE_HEAD.format(system=SYSTEM_FILE)]
    for key in KEYS:
        parts.append(f"| [`{key.dotted}`](#{_anchor(key)}) | `{key.written(key.default)}` | `{key.variable}` | ")
        parts.append(re.sub('"([^"]+)"', r"`\1`", _about(key)).replace('""', '`""`') + " |\n")
    for section, title in SECTIONS.items():
        parts.append(f"\n### {title}\n" if not section else f"\n### {title}: `[{section}]`\n")
        parts += [_entry(key) for key in KEYS if key.section == section]
    return "".join(parts)


def schema() -> str:
    """The text of ``docs/autogpu.schema.json``, for editors."""
    top: dict[str, object] = {}
    for section, title in SECTIONS.items():
        found = {key.name: _schema_of(key) for key in KEYS if key.section == section}
        if section:
            top[section] = {
                "type": "object",
                "title": title,
                "additionalProperties": False,
                "properties": found,
            }
        else:
            top.update(found)
    whole = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "autogpu.toml",
        "description": "Which GPU a TensorFlow process gets, and how much of its memory.",
        "type": "object",
        "additionalProperties": False,
        "properties": top,
    }
    return json.dumps(whole, indent=2, ensure_ascii=False) + "\n"


def documents() -> dict[str, str]:
    """Every generated file: its path in the checkout, and its text."""
    return {"autogpu.toml.example": example(), "docs/policy.md": page(), "docs/autogpu.schema.json": schema()}


def main(arguments: list[str]) -> int:
    """Write the documents, or compare them with ``--check``."""
    root = Path(__file__).resolve().parent.parent.parent
    if not (root / "pyproject.toml").is_file():
        sys.stderr.write(f"autogpu.policy.reference: {root} is not a checkout of autogpu\n")
        return 2
    stale = []
    for name, text in documents().items():
        file = root / name
        if not file.is_file() or file.read_text(encoding="utf-8") != text:
            stale.append(name)
            if "--check" not in arguments:
                file.write_text(text, encoding="utf-8")
    if stale:
        verb = "differs from the model" if "--check" in arguments else "written"
        sys.stdout.write("".join(f"{name}: {verb}\n" for name in stale))
    return 1 if stale and "--check" in arguments else 0


def _example_lines(keys: list[Key]) -> str:
    said = [f"{key.name} = {key.written(key.default)}" for key in keys]
    column = max(_COLUMN, *(len(text) + 3 for text in said))
    lines = []
    for key, text in zip(keys, said):
        for comment in key.about.split("\n"):
            for part in textwrap.wrap(comment, _WIDTH - column - len("# ")):
                lines.append(text.ljust(column) + "# " + part)
                text = ""
    return "".join(line + "\n" for line in lines)


def _entry(key: Key) -> str:
    table = f"[{key.section}]\n" if key.section else ""
    return (
        f"\n#### {key.dotted}\n\n{_sentence(_about(key))} {key.more}\n\n"
        f"- Allowed: {key.kind.allowed}\n"
        f"- Default: `{key.written(key.default)}`\n"
        f"- Variable: `{key.variable}`\n"
        f"\n```toml\n{table}{key.example}\n```\n"
    )


def _schema_of(key: Key) -> dict[str, object]:
    description = f"{_sentence(_about(key))}\n{key.more}\nAllowed: {key.kind.allowed}."
    return {**key.kind.schema(), "default": key.kind.plain(key.default), "description": description}


def _about(key: Key) -> str:
    return key.about.replace("\n", " ")


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:].rstrip(".") + "."


def _anchor(key: Key) -> str:
    # As GitHub makes anchors of headings: lower case, dots dropped.
    return key.dotted.lower().replace(".", "")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
