"""A Python file of the project that is no module of a package."""

from __future__ import annotations

import importlib.util


def module_of(file):
    """Run a file as a module of its own."""
    spec = importlib.util.spec_from_file_location(file.stem, file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
