"""Put a private copy of tomli into autogpu's wheel.

A script's environment may have no tomli, or a version that its Python can't import.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tomli
from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CustomBuildHook(BuildHookInterface):
    """The build hook that hatchling runs before it builds a wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add tomli's files and its license. An editable install imports the installed tomli."""
        if version == "editable":
            return
        folder = Path(tomli.__file__).parent
        for file in (*folder.glob("*.py"), *folder.parent.glob("tomli-*.dist-info/LICENSE")):
            build_data["force_include"][str(file)] = f"autogpu/_vendor/tomli/{file.name}"
