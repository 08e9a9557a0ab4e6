"""The packages that autogpu needs in a user's process, under names of its own.

So a script's ``import pynvml`` finds what the script's environment has, and autogpu's own import is not affected by it.
tomli 2.0.1 lies here, the last release for Python 3.7. A host's folder also has a copy of pynvml here; elsewhere it is
found where packages are installed.
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
    """Where pynvml may be imported from: this folder, that of autogpu, where packages are installed, as `run` says.

    Never from a project's own folder: a script's ``pynvml.py`` is not for us to run.
    """
    here = os.path.dirname(os.path.abspath(__file__))
    beside = os.path.dirname(os.path.dirname(here))
    installed = [folder for folder in path if os.path.basename(str(folder).rstrip("/")) in _SITE_FOLDERS]
    of_run = os.environ.get(PYNVML_FOLDER)
    return list(dict.fromkeys([here, beside, *map(str, installed), *([of_run] if of_run else [])]))


__path__ = package_folders(sys.path)
