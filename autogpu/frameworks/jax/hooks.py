"""Where JAX is hooked into: the function that starts its backends, and the last one in Python before the client."""

from __future__ import annotations

import functools
import sys

from autogpu.frameworks.base import Hooks
from autogpu.frameworks.jax.start import PLATFORM, BackendStart

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Mapping

    from autogpu.frameworks.base import GpuAllocator

_INSTALLED = "_autogpu_hook"

_BRIDGE, _CLIENT = "jax._src.xla_bridge", "jaxlib.xla_client"

# Of the client's module: all options have been merged when it is called.
_MAKE_CLIENT = "make_c_api_client"

# Of the bridge. Without them a process that is to have no GPU can't be told so before JAX has begun to make a client.
_BACKENDS = ("backends", "_discover_and_register_pjrt_plugins", "_backend_factories")


def find_hooks() -> Hooks:
    """See :meth:`autogpu.frameworks.base.Framework.find_hooks`."""
    version = str(getattr(sys.modules.get("jax"), "__version__", "?"))
    client: Any = sys.modules.get(_CLIENT)
    if not callable(getattr(client, _MAKE_CLIENT, None)):
        return Hooks(version, obstacle=f"this JAX ({version}) has no xla_client.{_MAKE_CLIENT}")
    bridge: Any = sys.modules.get(_BRIDGE)
    if all(hasattr(bridge, name) for name in _BACKENDS):
        return Hooks(version, (f"xla_client.{_MAKE_CLIENT}", "xla_bridge.backends"), has_essential=True)
    missing = {"xla_bridge.backends": 'select.count = 0 and busy = "cpu" do not keep JAX from the GPUs'}
    return Hooks(version, (f"xla_client.{_MAKE_CLIENT}",), missing, has_essential=True)


def install_hooks(allocator: GpuAllocator) -> Hooks:
    """See :meth:`autogpu.frameworks.base.Framework.install_hooks`."""
    hooks = find_hooks()
    client: Any = sys.modules.get(_CLIENT)
    if hooks.obstacle or getattr(getattr(client, _MAKE_CLIENT), _INSTALLED, False):
        return hooks
    bridge: Any = sys.modules.get(_BRIDGE)
    start = BackendStart(allocator, bridge)
    setattr(client, _MAKE_CLIENT, _make_client(getattr(client, _MAKE_CLIENT), start))
    setattr(getattr(client, _MAKE_CLIENT), _INSTALLED, True)
    if not hooks.missing:
        bridge.backends = _start_backends(bridge.backends, bridge, start)
    return hooks


def fallback_environment(environ: Mapping[str, str], growth: bool) -> dict[str, str]:
    """See :meth:`autogpu.frameworks.base.Framework.fallback_environment`."""
    return {}


def _start_backends(original: Any, bridge: Any, start: BackendStart) -> Any:
    @functools.wraps(original)
    def backends() -> Any:
        start.before_backends()
        started = original()
        # It is called at every look at a device: it must be itself again once it has started.
        if bridge.backends is backends:
            bridge.backends = original
        start.after_backends(started)
        return started

    return backends


def _make_client(original: Any, start: BackendStart) -> Any:
    @functools.wraps(original)
    def make_c_api_client(plugin_name: str, options: Any = None, *args: Any, **kwargs: Any) -> Any:
        if plugin_name != PLATFORM:
            return original(plugin_name, options, *args, **kwargs)
        client = original(plugin_name, start.completed(options), *args, **kwargs)
        start.after_client()
        return client

    return make_c_api_client
