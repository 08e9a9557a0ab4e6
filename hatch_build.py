"""Put tomli into autogpu's wheel, as a private package: the environment of a script may have none, or another one."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CustomBuildHook(BuildHookInterface):
    """What hatchling calls before it builds a wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the files of tomli and its license; an editable install finds tomli where packages are installed."""
        if version == "editable":
            return
        files = metadata.files("tomli") or ()
        for file in files:
            if file.suffix in (".py", ".typed") or file.name == "LICENSE":
                build_data["force_include"][str(Path(str(file.locate())))] = f"autogpu/_vendor/tomli/{file.name}"
