"""Memory limits of JAX's client: those that the script and JAX have set, and the one that autogpu writes.

XLA has two options and a flag for its pool. The flag overrides both options; of these, the second overrides the first:

* ``memory_fraction``, a number;
* ``memory_fraction_policy``, since the plug-in of JAX 0.12: ``"0.75"`` for a pool of fixed size, ``"0.75+"`` for one
  that begins with that part and may grow to all memory, ``"0.5-0.9"`` for one that may grow to nine tenths. The pool
  goes beyond the first number only if it is allocated at once, not if it is allocated as needed;
* ``--xla_gpu_memory_fraction_policy`` in ``XLA_FLAGS``, with a text of the same form. JAX 0.12.0 rejects this flag.

Source: https://docs.jax.dev/en/latest/gpu_memory_allocation.html, and experiments with the plug-in of JAX 0.12.0.1.
"""

from __future__ import annotations

import mmap
import re
import sys
from pathlib import Path
from typing import Any, Mapping, MutableMapping

from autogpu.errors import ignoring
from autogpu.frameworks.base import part_of
from autogpu.frozen import Value

FRACTION = "memory_fraction"
_POLICY = "memory_fraction_policy"
_FLAG = re.compile(r"--xla_gpu_memory_fraction_policy=(\S+)")

# Variables for the fraction, newer name first. JAX raises if both are set, so autogpu writes neither.
_VARIABLES = ("XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION")
_ALLOCATOR = "XLA_PYTHON_CLIENT_ALLOCATOR"

# These allocators ignore the fraction. The default allocator ignores it if _UNIFIED_MEMORY is "1" or "true".
_UNLIMITED = ("platform", "cuda_async", "address")
_UNIFIED_MEMORY = "TF_FORCE_UNIFIED_MEMORY"

# The part of a GPU that JAX may allocate if JAX sets no memory_fraction_policy by default.
DEFAULT_SHARE = 0.75

_FIRST_WITH_POLICY = (0, 12)
_PLUGIN = re.compile(r"jax_plugins\.xla_cuda\d+")
_PLUGIN_FILE = "xla_cuda_plugin.so"


class Settings(Value):
    """Limits of JAX's memory before autogpu adds its own.

    Attributes:
        by_script: The part of each GPU to which the script or the shell limits JAX; 0 for no such limit.
        by_flag: True if ``XLA_FLAGS`` sets that part, which no option can change.
        default_share: The part to which JAX limits itself if nobody sets a limit.
    """

    by_script: float
    by_flag: bool
    default_share: float


def read(options: Mapping[str, Any], environ: Mapping[str, str], own_options: Any, *, grows: bool = True) -> Settings:
    """Return the memory limits that the script, the shell and JAX have set.

    Args:
        options: The client's options, with JAX's defaults; ``{}`` if JAX has not built them yet.
        own_options: Options that the script sets: ``jax_pjrt_client_create_options``, a text or a mapping.
        grows: True if JAX allocates as needed; False if it allocates its pool at once.
    """
    flags = _FLAG.findall(environ.get("XLA_FLAGS", ""))
    variable = next(filter(None, map(environ.get, _VARIABLES)), "")
    own = _by_name(own_options)
    options = {**options, **own}
    policy = options.get(_POLICY, "")
    # If nobody has set a policy, the one in the options is JAX's default.
    is_set = bool(variable) or _POLICY in own
    candidates = [*flags[-1:], policy if is_set else "", options.get(FRACTION), variable]
    default = "" if is_set else str(policy)
    default_share = part_of(re.split("[+-]", default)[0]) if grows else most(default)
    return Settings(most(next(filter(None, candidates), 0)), bool(flags), default_share or DEFAULT_SHARE)


def _by_name(own_options: Any) -> dict[str, Any]:
    """Read options in JAX's notation, ``name:value;name:value``. JAX itself refuses other texts."""
    if isinstance(own_options, Mapping):
        return dict(own_options)
    pairs = [option.partition(":") for option in str(own_options or "").split(";")]
    return {name: value for name, _, value in pairs}


def most(policy: Any) -> float:
    """Return the part of a GPU up to which a pool may grow, 0 to 1; 0 for a text that XLA will refuse."""
    text = str(policy).strip()
    start, plus, rest = text.partition("+")
    if plus:
        return 1.0 if part_of(start) and not rest else 0.0
    # A plain number may contain a minus as well: 1e-05.
    return part_of(text) or part_of(text.partition("-")[2])


def limit(options: MutableMapping[str, Any], part: float) -> None:
    options[FRACTION] = part
    if _POLICY in options or _plugin_knows_policy():
        options[_POLICY] = f"{part:.6f}-{part:.6f}"


def _plugin_knows_policy() -> bool:
    """True if the installed plug-in's file contains the option's name. JAX does not start with an unknown option."""
    if getattr(sys.modules.get("jax"), "__version_info__", ()) < _FIRST_WITH_POLICY:
        return False
    plugins = [module for name, module in list(sys.modules.items()) if _PLUGIN.fullmatch(name)]
    with ignoring(OSError, ValueError):  # there is no such file, or it is empty
        for plugin in plugins:
            with Path(plugin.__file__ or "").with_name(_PLUGIN_FILE).open("rb") as file:
                image = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            with image:
                return image.find(f"{_POLICY}\0".encode()) >= 0
    return False


def setting_without_limit(options: Mapping[str, Any], environ: Mapping[str, str]) -> str:
    """Return the setting with which JAX ignores a limit, such as ``NAME=value``; ``""`` if there is none."""
    allocator = str(options.get("allocator", environ.get(_ALLOCATOR, ""))).lower()
    if allocator in _UNLIMITED:
        return f"{_ALLOCATOR}={allocator}"
    unified = environ.get(_UNIFIED_MEMORY, "")
    return f"{_UNIFIED_MEMORY}={unified}" if unified.lower() in ("1", "true") else ""
