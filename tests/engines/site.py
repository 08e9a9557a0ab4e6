"""The Slurm of a page of the documents: its files as they are printed there, and as a cluster of the tests has them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Mapping

# What a configuration says of the machines that it is for, and not of what jobs can ask for.
OF_THE_SITE = ("SelectType", "SelectTypeParameters", "GresTypes", "NodeName", "PartitionName")


def files_of(page: Path) -> dict[str, str]:
    """By name, the files that a page prints in full: code blocks whose first line says ``# /etc/slurm/<name>``."""
    blocks = re.findall(r"^```\w*\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    named = ((re.match(r"# /etc/slurm/([\w.]+)", block), block) for block in blocks)
    return {found.group(1): block for found, block in named if found}


def site_lines(configuration: str, addresses: Mapping[str, str]) -> str:
    """Of a ``slurm.conf``, what jobs can ask for, with a line for each node that says where it is.

    Args:
        addresses: By the node's name, ``NodeAddr=... Port=...``.
    """
    lines = []
    for line in configuration.splitlines():
        key, _, rest = line.partition("=")
        if key not in OF_THE_SITE:
            continue
        if key == "NodeName":
            names, _, fields = rest.partition(" ")
            lines += [f"NodeName={node} {addresses[node]} {fields}" for node in names_in(names)]
        else:
            lines.append(line)
    return "".join(f"{line}\n" for line in lines)


def names_in(pattern: str) -> list[str]:
    """The nodes that ``lab[1-5]`` means."""
    stem, first, last = re.fullmatch(r"(\w+)\[(\d+)-(\d+)\]", pattern).groups()
    return [f"{stem}{number}" for number in range(int(first), int(last) + 1)]
