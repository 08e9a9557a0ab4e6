"""Private copies of the packages that autogpu imports in a user's process: pynvml, and tomli before Python 3.11.

They have names of their own, such as ``autogpu._vendor.pynvml``, so a script and autogpu never share a module. In the
wheel this folder has tomli (``hatch_build.py`` puts it there). In a host's hook folder (/usr/local/lib/autogpu) it also
has pynvml. If a package is not in this folder, autogpu imports it from the folders of installed packages.
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
    """Return the folders in which to look for pynvml and tomli.

    The folder of a project is never among them, because autogpu must not run a script's own ``pynvml.py``.
    """
    here = os.path.dirname(os.path.abspath(__file__))
    beside = os.path.dirname(os.path.dirname(here))
    installed = [folder for folder in path if os.path.basename(str(folder).rstrip("/")) in _SITE_FOLDERS]
    of_run = os.environ.get(PYNVML_FOLDER)
    return list(dict.fromkeys([here, beside, *map(str, installed), *([of_run] if of_run else [])]))


__path__ = package_folders(sys.path)
