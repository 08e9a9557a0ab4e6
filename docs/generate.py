"""Write the documents that are made from the source, or compare them with ``--check``.

    python docs/generate.py [--check]

``autogpu.toml.example``, ``docs/policy.md`` and ``docs/autogpu.schema.json`` are made from the policy's model and the
texts of ``docs/policy-keys.toml``. The tables in ``docs/security.md`` are made from the start-up files, and the
beginning of ``sitecustomize_template/run/sitecustomize.py`` is copied from the hook.
"""

from __future__ import annotations

import ast
import hashlib
import json
import re
import sys
from pathlib import Path

from autogpu import __version__, install
from autogpu.policy.model import BY_DOTTED, KEYS, SECTIONS, SYSTEM_FILE, Key
from autogpu.policy.templates import example

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parent.parent

_PAGE_HEAD = """\
# Policy reference

A policy says which GPU a process gets and how much of its memory. The defaults need no configuration: the process gets
the idlest GPU, and memory grows as it is needed. `autogpu config` shows each key's value and where it was set;
`autogpu init` writes a file to start from.

## Where settings come from

Later rows of this table override earlier ones, separately for each key. Keys that the system file lists in
[`locked`](#locked) are an exception.

| Layer | Place | Applies to |
|---|---|---|
| default | built in | everything |
| system | `{system}` | this host |
| user | `$XDG_CONFIG_HOME/autogpu/autogpu.toml` (`~/.config/autogpu/autogpu.toml`) | all your processes |
| project | `autogpu.toml`, or `[tool.autogpu]` in `pyproject.toml` | the scripts in and below that folder |
| environment | `AUTOGPU_COUNT`, `AUTOGPU_LIMIT`, ... | one shell or one process |
| command line | `autogpu run --count 2 -- python train.py` | one command |

**Which project file.** autogpu searches upwards from the script's folder, and then upwards from the working directory.
It uses the first file that it finds. The last folder of each search is your home folder or `/`. If a folder has
`autogpu.toml` and `pyproject.toml`, only `autogpu.toml` is used. `AUTOGPU_POLICY=FILE` sets the project file without a
search; `AUTOGPU_POLICY=/dev/null` means no project file.

**Which files are trusted.** A project file that was found is used only if it and its folder belong to you or to root,
no other user can write to them, and it is not a link. Write permission for the owner's private group (same name, no
other member) is allowed. autogpu ignores any other file and prints one line. If `AUTOGPU_POLICY` is the path of a file,
autogpu uses the file, whoever owns it.

**The environment.** Every key has one variable, except those that only the system file can set. An empty variable counts as unset. Lists are separated by commas;
`none` empties a list and resets a `need` or a `limit`. Booleans are `1`, `true`, `yes`, `on` and `0`, `false`, `no`,
`off`. Files accept these spellings too.

**Mistakes.** Invalid entries are ignored, the rest applies, and the script runs. All mistakes are reported together,
each with its file and line, the allowed values, the nearest known name, and the value that is used instead. At most 20
unknown names are reported per file. Unknown names in the system file are shown only by `doctor`, `config check` and
`host-setup --check`, because one host may have several versions of autogpu. A policy can't contain code to run.

[autogpu.schema.json](autogpu.schema.json) describes the same keys for editors: write `#:schema` and the schema's
address on the first line of a policy file. The schema is stricter than autogpu: it accepts values only as written in
`autogpu.toml.example`. So an editor marks `count = "2"`, `devices = "0,2"` and `busy = "Wait"`. The schema does not
check strings such as sizes; `autogpu config check` does.

## How values are written

| | Written | Meaning |
|---|---|---|
| memory, always with its unit | `"6GiB"`, `"512 MiB"`, `"1.5GiB"`, `"8G"` | `KiB`, `MiB`, `GiB`, `TiB`; also written `Gi` or `G`: powers of 1024 |
| | `"8GB"` | `KB`, `MB`, `GB`, `TB`: powers of 1000 |
| percentage | `"50%"` | of the GPU's memory; above 0, up to 100 |
| time | `"30m"`, `"90s"`, `"2h"`, `"1h30m"`, `"1d"`, `"0"` | a number alone is seconds |

## Keys

| Key | Default | Variable | |
|---|---|---|---|
"""  # noqa: E501


def explanations(written: str) -> dict[str, str]:
    """Return the long text of each key from ``docs/policy-keys.toml``.

    Raises:
        ValueError: A key has no text, or a text has no key.
    """
    texts = {}
    for name, inside in tomllib.loads(written).items():
        section = (
            {f"{name}.{key}": text for key, text in inside.items()} if isinstance(inside, dict) else {name: inside}
        )
        texts.update({dotted: " ".join(text.split()) for dotted, text in section.items()})
    without = sorted(key.dotted for key in KEYS if not texts.get(key.dotted))
    unknown = sorted(texts.keys() - BY_DOTTED.keys())
    if without or unknown:
        raise ValueError(f"docs/policy-keys.toml: keys without a text: {without}; texts without a key: {unknown}")
    return texts


def page(texts: dict[str, str]) -> str:
    parts = [_PAGE_HEAD.format(system=SYSTEM_FILE)]
    for key in KEYS:
        parts.append(f"| [`{key.dotted}`](#{_anchor(key)}) | `{key.written(key.default)}` | {_variable(key)} | ")
        parts.append(re.sub('"([^"]+)"', r"`\1`", key.about.replace("\n", " ")).replace('""', '`""`') + " |\n")
    for section, title in SECTIONS.items():
        parts.append(f"\n### {title}\n" if not section else f"\n### {title}: `[{section}]`\n")
        parts += [_entry(key, texts[key.dotted]) for key in KEYS if key.section == section]
    return "".join(parts)


def schema(texts: dict[str, str]) -> str:
    top: dict[str, object] = {}
    for section, title in SECTIONS.items():
        keys = {key.name: _schema_of(key, texts[key.dotted]) for key in KEYS if key.section == section}
        if section:
            top[section] = {"type": "object", "title": title, "additionalProperties": False, "properties": keys}
        else:
            top.update(keys)
    whole = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "autogpu.toml",
        "description": "Which GPU a process gets, and how much of its memory.",
        "type": "object",
        "additionalProperties": False,
        "properties": top,
    }
    return json.dumps(whole, indent=2, ensure_ascii=False) + "\n"


def _schema_of(key: Key, text: str) -> dict[str, object]:
    description = f"{_sentence(key)}\n{text}\nAllowed: {key.kind.allowed}."
    return {**key.kind.schema, "default": key.kind.plain(key.default), "description": description}


# Rules for start-up files that administrators check, and the names that a file would use to break each rule.
_RULES = {
    "no `exec`, `eval`, `compile`, `__import__`": "exec eval compile __import__",
    "nothing encoded: no `base64`, `codecs`, `marshal`, `pickle`, `zlib`": "base64 binascii codecs marshal pickle zlib",
    "no network: no `socket`, `ssl`, `urllib`, `http`": "socket ssl urllib http requests",
    "no process: no `subprocess`, `system`, `popen`, `fork`": "subprocess multiprocessing system popen fork ctypes",
    "no file: no `open`, `io`, `pathlib`, `shutil`, `tempfile`": "open io pathlib shutil tempfile",
}


def start_up_tables() -> str:
    """Return the tables of ``docs/security.md``: size and hash of each start-up file, and the rules that it keeps."""
    names = (install.PTH, install.START, install.HOOK, install.STEPS, install.SITECUSTOMIZE)
    contents = [install.template_file(install.template_folder(), name).read_bytes() for name in names]
    parts = [f"| File of autogpu {__version__} | Bytes | SHA-256 |\n|---|---|---|\n"]
    for name, content in zip(names, contents):
        parts.append(f"| `{name}` | {len(content)} | `{hashlib.sha256(content).hexdigest()}` |\n")
    parts.append(f"\n| | {' | '.join(f'`{name}`' for name in names)} |\n|---|{'---|' * len(names)}\n")
    columns = [rules(content.decode("ascii")) for content in contents]
    parts += [f"| {rule} | {' | '.join(column[rule] for column in columns)} |\n" for rule in columns[0]]
    return "".join(parts)


def rules(text: str) -> dict[str, str]:
    """Return one file's column of the second table, keyed by row. It is read from the file's syntax."""
    code = [line for line in text.splitlines() if line and not line.lstrip().startswith("#")]
    # Turn the line "module:function" of a .start file into Python: import the module, call the function.
    tree = ast.parse(re.sub(r"^(\w+):(\w+)$", r"import \1; \1.\2()", text, flags=re.MULTILINE))
    imported: dict[str, None] = {}
    words = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imported.update(dict.fromkeys(alias.name for alias in node.names))
        elif isinstance(node, ast.ImportFrom):
            imported[node.module or "."] = None
            words |= {alias.name for alias in node.names}
        elif isinstance(node, ast.Name):
            words.add(node.id)
        elif isinstance(node, ast.Attribute):
            words.add(node.attr)
    words.update(part for module in imported for part in module.split("."))
    shown = f"`{code[0]}`" if len(code) == 1 else f"{len(code)} lines"
    return {
        "lines of code: neither blank nor a comment (a `.pth` file has one)": shown,
        "modules that it imports, at the start or later": ", ".join(f"`{module}`" for module in sorted(imported)),
        **{rule: "no" if words & set(names.split()) else "yes" for rule, names in _RULES.items()},
    }


def documents() -> dict[str, str]:
    """Return the text of every generated file, keyed by its path in the checkout."""
    texts = explanations((ROOT / "docs" / "policy-keys.toml").read_text(encoding="utf-8"))
    security = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
    before, begin, rest = security.partition("<!-- start-up files -->\n")
    _, end, after = rest.partition("<!-- end of start-up files -->\n")
    hook = (ROOT / "sitecustomize_template" / install.HOOK).read_text(encoding="ascii")
    sitecustomize = (ROOT / "sitecustomize_template" / "run" / install.SITECUSTOMIZE).read_text(encoding="ascii")
    _, mark, rest = sitecustomize.partition(f"\n\n# The text above is that of {install.HOOK};")
    return {
        "sitecustomize_template/run/sitecustomize.py": hook + mark + rest,
        "autogpu.toml.example": example(),
        "docs/policy.md": page(texts),
        "docs/autogpu.schema.json": schema(texts),
        "docs/security.md": before + begin + start_up_tables() + end + after,
    }


def main(arguments: list[str], root: Path = ROOT) -> int:
    """Write the documents. With ``--check`` only compare them, and return 1 if one differs."""
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


def _entry(key: Key, text: str) -> str:
    return (
        f"\n#### {key.dotted}\n\n{_sentence(key)} {text}\n\n"
        f"- Allowed: {key.kind.allowed}\n"
        f"- Default: `{key.written(key.default)}`\n"
        f"- Variable: {_variable(key)}\n"
    )


def _variable(key: Key) -> str:
    return "none" if key.system_only else f"`{key.variable}`"


def _sentence(key: Key) -> str:
    return (key.about[0].upper() + key.about[1:].rstrip(".") + ".").replace("\n", " ")


def _anchor(key: Key) -> str:
    # GitHub makes anchors of headings like this: lower case, without dots.
    return key.dotted.lower().replace(".", "")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
