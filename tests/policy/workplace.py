"""A place of its own for each test: a home, a project, a system file, and one call that resolves them."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Mapping

from autogpu.policy import Resolved, resolve


class Workplace:
    """Real files under one folder; ``resolve`` reads them as a process with this home would."""

    def __init__(self, top: Path) -> None:
        self.home = top / "home"
        self.project = self.home / "proj"
        self.system_file = top / "etc" / "autogpu.toml"
        self.user_file = self.home / ".config" / "autogpu" / "autogpu.toml"
        self.project.mkdir(parents=True)
        self.script = self.project / "train.py"

    def write(self, file: Path, text: str) -> Path:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(textwrap.dedent(text).encode())
        return file

    def system(self, text: str) -> Path:
        return self.write(self.system_file, text)

    def user(self, text: str) -> Path:
        return self.write(self.user_file, text)

    def autogpu_toml(self, text: str) -> Path:
        return self.write(self.project / "autogpu.toml", text)

    def pyproject(self, text: str) -> Path:
        return self.write(self.project / "pyproject.toml", text)

    def resolve(
        self,
        environ: Mapping[str, str] | None = None,
        *,
        script: Path | None = None,
        working_directory: Path | None = None,
        flags: Mapping[str, str] | None = None,
    ) -> Resolved:
        return resolve(
            {"HOME": str(self.home), **(environ or {})},
            script=script,
            working_directory=working_directory or self.project,
            flags=flags or {},
            system_file=self.system_file,
        )

    def problems(self, environ: Mapping[str, str] | None = None, **arguments: object) -> list[str]:
        return [str(problem) for problem in self.resolve(environ, **arguments).problems]  # type: ignore[arg-type]
