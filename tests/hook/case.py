"""One thing that a program does with TensorFlow's import, and the steps that must come of it.

Each runs in a fresh interpreter, which asserts what only it can see; the expected ``steps`` are the events of the
stand-ins in their order.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Mapping

ALL = "before body after"


@dataclass(frozen=True)
class Case:
    name: str
    code: str
    steps: str = ALL
    environ: Mapping[str, str] = field(default_factory=dict)
    options: tuple[str, ...] = ()
    since: tuple[int, int] = (3, 7)
    stderr: str = ""
