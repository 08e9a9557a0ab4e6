"""A fixture with a home, a project folder and a system file for each test, and a call that resolves the policy."""

import os
import textwrap

import pytest

from autogpu.policy import resolve


class Workplace:
    """Real files under one folder; ``resolve`` reads them as a process with this home would."""

    def __init__(self, top):
        self.home = top / "home"
        self.project = self.home / "proj"
        self.system_file = top / "etc" / "autogpu.toml"
        self.user_file = self.home / ".config" / "autogpu" / "autogpu.toml"
        self.project.mkdir(parents=True)
        self.script = self.project / "train.py"

    def write(self, file, text):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(textwrap.dedent(text).encode())
        return file

    def system(self, text):
        return self.write(self.system_file, text)

    def user(self, text):
        return self.write(self.user_file, text)

    def autogpu_toml(self, text):
        return self.write(self.project / "autogpu.toml", text)

    def pyproject(self, text):
        return self.write(self.project / "pyproject.toml", text)

    def resolve(self, environ=None, *, script=None, working_directory=None, flags=None):
        return resolve(
            {"HOME": str(self.home), **(environ or {})},
            script=script,
            working_directory=working_directory or self.project,
            flags=flags or {},
            system_file=self.system_file,
        )

    def problems(self, environ=None):
        return [*self.resolve(environ).problems]


@pytest.fixture
def workplace(tmp_path):
    # Group write bits decide whether a file is trusted, so the tests don't use the machine's umask.
    before = os.umask(0o022)
    yield Workplace(tmp_path / "machine")
    os.umask(before)
