"""The packages that autogpu needs in a user's process, under names of its own.

So a script's ``import pynvml`` finds what the script's environment has, and autogpu's own import is not affected by it.
An installed autogpu has tomli here (``hatch_build.py``), and a host's folder pynvml as well. What is not here is found
where packages are installed.
"""

from __future__ import annotations

import os
import sys

from autogpu.variables import PYNVML_FOLDER

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Sequence

_SITE_FOLDERS = ("site-packages", "dist-packages")


def package_folders(path: Sequence[str]) -> list[str]:
    """The folders from which autogpu imports pynvml and tomli: its own, those of packages, and that which `run` names.

    Never a project's own folder: autogpu does not run a script's ``pynvml.py``.
    """
    here = os.path.dirname(os.path.abspath(__file__))
    beside = os.path.dirname(os.path.dirname(here))
    installed = [folder for folder in path if os.path.basename(str(folder).rstrip("/")) in _SITE_FOLDERS]
    of_run = os.environ.get(PYNVML_FOLDER)
    return list(dict.fromkeys([here, beside, *map(str, installed), *([of_run] if of_run else [])]))


__path__ = package_folders(sys.path)
