"""Slurm's configuration: whether it manages GPUs, and how many shards a node's GPUs are. Pure.

Source: slurm.conf(5).
"""

from __future__ import annotations

import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Mapping


def manages_gpus(conf: str | None) -> bool:
    """GPUs are among the generic resources that the cluster grants; ``conf`` is the text, if there is one."""
    types = re.search(r"(?im)^[ \t]*grestypes[ \t]*=([^#\r\n]*)", conf or "")
    return types is not None and "gpu" in types.group(1).strip().lower().split(",")


def included_files(conf: str) -> list[str]:
    """The files that it includes, by names that are relative to its own folder."""
    return re.findall(r"(?im)^[ \t]*include[ \t]+([^\s#]+)", conf)


def gres_of_node(conf: str, node: str) -> Mapping[str, int]:
    """By type, how many generic resources Slurm's configuration gives a node: ``Gres=gpu:a100:4,shard:8``."""
    default: Mapping[str, int] = {}
    for line in conf.replace("\\\n", " ").splitlines():
        words = [word.partition("=") for word in line.split("#")[0].split()]
        fields = {name.lower(): value for name, _, value in words}
        patterns, gres = _entries(fields.get("nodename", "")), _counts(fields.get("gres", ""))
        if patterns == ["DEFAULT"]:
            default = gres or default
        elif node and any(_is_node(node, pattern) for pattern in patterns):
            return gres or default
    return {}


def _counts(gres: str) -> Mapping[str, int]:
    counts: dict[str, int] = {}
    for entry in _entries(gres):
        # gpu:a100:4(S:0-1)
        parts = entry.partition("(")[0].split(":")
        if len(parts) > 1 and re.fullmatch("[0-9]{1,6}", parts[-1]):
            counts[parts[0]] = counts.get(parts[0], 0) + int(parts[-1])
    return counts


def _entries(text: str) -> list[str]:
    # Separated by commas outside of brackets.
    return re.findall(r"(?:[^,\[(]|\[[^\]]*\]?|\([^)]*\)?)+", text)


def _is_node(node: str, pattern: str) -> bool:
    """One of Slurm's host lists means a node: ``gpu[01-08,12]``, ``rack[1-2]n[1-4]``."""
    parts = re.split(r"\[([0-9,-]*)\]", pattern)
    found = re.fullmatch("([0-9]{1,9})".join(map(re.escape, parts[::2])), node)
    return found is not None and all(map(_is_in, found.groups(), parts[1::2]))


def _is_in(number: str, numbers: str) -> bool:
    spans = (re.fullmatch("([0-9]{1,9})(?:-([0-9]{1,9}))?", part) for part in numbers.split(","))
    return any(int(span.group(1)) <= int(number) <= int(span.group(2) or span.group(1)) for span in spans if span)
