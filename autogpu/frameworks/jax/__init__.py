"""JAX: the start of its backends, and the options of the client that has the GPUs.

JAX makes a context on each GPU that its client sees, and by default takes 75 % of each at the first allocation. All
settings end in that client's options. autogpu adds the assignment there, except for options that the script has set.

A script with GPU number 2, as in ``jax.devices()[args.gpu]``, needs three devices. So JAX also sees the GPUs before
that number, and the claimed GPU gets the number.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any, Iterable, Mapping, Sequence

from autogpu.devices import probe
from autogpu.errors import ignoring, raise_if_from_script
from autogpu.frameworks.base import HookedFramework, hooked, is_hooked, put_back
from autogpu.frameworks.calls import calls
from autogpu.frameworks.jax import memory
from autogpu.frameworks.jax.number import number_of_process, places_of, shown_ordinals
from autogpu.frameworks.model import Assignment, DeviceRequest, Hooks, OutOfMemory, Usage
from autogpu.frozen import replace
from autogpu.reporting import frameworks as framework_messages
from autogpu.reporting.memory import memory_in_words, not_enforced
from autogpu.text import MIB

_BRIDGE = "jax._src.xla_bridge"
_CLIENT = "jaxlib.xla_client"

# The function of the client's module that makes a client. JAX has merged all options when it calls it.
_MAKE_CLIENT = "make_c_api_client"

# Names in the bridge. Without them, autogpu can't keep JAX from the GPUs before JAX makes a client.
_BACKENDS = ("backends", "_discover_and_register_pjrt_plugins", "_backend_factories")

_PLATFORM = "cuda"
_ALIASES = (_PLATFORM, "gpu")

# The names, in several JAX versions, of the function that returns the default device.
_DEFAULT_DEVICE = ("get_default_device", "_get_default_device")

_CLASSES = ("XlaRuntimeError", "JaxRuntimeError")

# Modules that the first use needs. They are imported together with JAX; other frameworks need them at their import.
_NEEDED_AT_FIRST_USE = (
    *("autogpu.allocation", "autogpu.engines", "autogpu.policy", "autogpu.devices.nvml"),
    *("marshal", "select", "threading"),
)


class JAX(HookedFramework):
    """JAX in this process: the start of its backends, and the client that has the GPUs."""

    NAME = "JAX"
    default_share = memory.DEFAULT_SHARE
    WANTS_ORDER = True  # JAX names its devices by their ordinals, and checkpoints contain these names

    _bridge: Any = None  # jax._src.xla_bridge
    _memory = memory.Settings(by_script=0.0, by_flag=False, default_share=memory.DEFAULT_SHARE)
    _has_prepared = False
    _number: int | None = None  # the script's GPU number; None before the search for it
    _shown_count = 0  # how many GPUs the client was given
    _first_claimed = 0  # the lowest ordinal of the claimed GPUs, if JAX also sees others

    @staticmethod
    def find_hooks() -> Hooks:
        version = str(getattr(sys.modules.get("jax"), "__version__", "?"))
        client: Any = sys.modules.get(_CLIENT)
        if not callable(getattr(client, _MAKE_CLIENT, None)):
            return Hooks(version, obstacle=f"this JAX ({version}) has no xla_client.{_MAKE_CLIENT}")
        # `-X lazy_imports=all` delays this module. If autogpu imported it now, JAX would fail at its first operation.
        bridge: Any = sys.modules.get(_BRIDGE)
        if all(hasattr(bridge, name) for name in _BACKENDS):
            return Hooks(version, (f"xla_client.{_MAKE_CLIENT}", "xla_bridge.backends"))
        missing = {"xla_bridge.backends": 'JAX uses GPUs despite select.count = 0 or busy = "cpu"'}
        return Hooks(version, (f"xla_client.{_MAKE_CLIENT}",), missing)

    def install_hooks(self, hooks: Hooks) -> None:
        self._bridge = sys.modules.get(_BRIDGE)
        if not self._hook_client():
            return
        if not hooks.missing:
            self._bridge.backends = hooked(self._bridge.backends, self.backends)
            for holder, name in self._default_device_functions():
                setattr(holder, name, hooked(getattr(holder, name), self.default_device))
        if self._has_cuda_plugin():
            # The first use must import nothing. If another thread forked a child during an import, the child would wait
            # for the module's lock forever.
            for name in _NEEDED_AT_FIRST_USE:
                importlib.import_module(name)
            probe.import_pynvml()

    def _hook_client(self) -> bool:
        """Hook the function that makes a client. Return False if it is already hooked."""
        client = self._client()
        original = getattr(client, _MAKE_CLIENT, None)
        if not callable(original) or is_hooked(original):
            return False
        client.make_c_api_client = hooked(original, self.make_c_api_client)
        return True

    def _client(self) -> Any:
        # The bridge keeps the module that it imported, which may be older than the one in sys.modules.
        return getattr(self._bridge, "xla_client", None) or sys.modules[_CLIENT]

    @staticmethod
    def peak_bytes() -> int:
        return _counted("peak_bytes_in_use")

    @classmethod
    def current_bytes(cls) -> int:
        return _counted("bytes_in_use")

    @classmethod
    def needed_bytes(cls, *, growth: bool) -> int:
        # Without growth, the pool is always as large as JAX's share, which shows no need.
        return (growth and _counted("peak_pool_bytes")) or cls.peak_bytes()

    @staticmethod
    def out_of_memory(error: BaseException) -> OutOfMemory | None:
        text = str(error)
        if type(error).__name__ not in _CLASSES or not text.startswith("RESOURCE_EXHAUSTED"):
            return None
        return OutOfMemory.in_text(text, "allocat(?:e|ing) SIZE", r"GPU_(\d+)_bfc")

    def backends(self, original: Any) -> Any:
        """Before JAX starts its backends, decide whether JAX gets a GPU. Release the claim if JAX then uses no GPU."""
        with self.lock, self.guard():
            self._hook_client()  # the script may have reloaded xla_client
            self._prepare()
        started = original()
        # Remove the hooks: JAX calls these functions at every access to a device.
        put_back(self._bridge, "backends", original)
        for holder, name in self._default_device_functions():
            put_back(holder, name, getattr(getattr(holder, name), "__wrapped__", None))
        with self.guard():
            self._set_default_device(started)
            if self._has_prepared and _PLATFORM not in started:
                self.on_unused()
                self.on_usage(Usage((), ""))
        return started

    def make_c_api_client(self, original: Any, plugin_name: str, options: Any = None, *args: Any, **kwargs: Any) -> Any:
        options = self._completed(options) if plugin_name == _PLATFORM else options
        return original(plugin_name, options, *args, **kwargs)

    def _prepare(self) -> None:
        if self._bridge._backends or not self._may_use_gpus():
            return
        # Do this before the plug-in checks CUDA's version, because the check initialises CUDA.
        self._has_prepared = True
        self._prepare_for_number()
        self._bridge._discover_and_register_pjrt_plugins()
        if _PLATFORM in self._bridge._backend_factories:
            self._decide()

    def _prepare_for_number(self) -> None:
        visible = self._flag()
        if self._number is None:
            self._number = 0 if visible else self._find_number()
        places = places_of(self._number, self.allocation.policy.count, self.gpu_count or 0)
        self.prepare(replace(self._request(visible, 0), places=places))

    def _find_number(self) -> int:
        is_rank = self.allocation.is_rank
        # All ranks of a job have the same command line, so it can't contain the number of a rank.
        words = [] if is_rank else getattr(sys, "argv", [])[1:]
        # JAX never receives the number, so search its callers. Search their globals as well, because the module that
        # set the number may no longer be on the stack.
        return number_of_process(calls("jax", with_globals=True), words, is_rank=is_rank)

    def default_device(self, original: Any) -> Any:
        """Start the backends, which may set the default device, before JAX reads the default device."""
        self._bridge.backends()
        return original()

    @staticmethod
    def _default_device_functions() -> list[tuple[Any, str]]:
        pxla = sys.modules.get("jax._src.interpreters.pxla")
        return [(pxla, name) for name in _DEFAULT_DEVICE if callable(getattr(pxla, name, None))]

    def _set_default_device(self, started: Mapping[str, Any]) -> None:
        """Make the claimed GPU JAX's default device, unless it is device 0 or the script has set another default."""
        config = sys.modules["jax"].config
        first = self._first_claimed
        is_default = _PLATFORM in started and self._bridge.get_backend() is started[_PLATFORM]
        if first and is_default and config.jax_default_device is None:
            devices = {device.local_hardware_id: device for device in started[_PLATFORM].local_devices()}
            config.update("jax_default_device", devices[first])

    def _decide(self) -> None:
        count = self.gpu_count
        # In older JAX versions CUDA has not started yet, and without it the number of GPUs can be unknown.
        is_known = count or self.listing() == ()
        is_none = is_known and self.assign(self._request(self._flag(), count or 0)).ordinals == ()
        if is_none:
            self._leave_out_gpus()
        if (is_none and not self._names_gpus) or count == 0:
            self.on_usage(Usage((), ""))

    def _completed(self, options: Any) -> Any:
        """Return the client's options, completed by the assignment. Options that the script has set stay."""
        with self.lock, self.guard():
            self._prepare_for_number()
            count = self.gpu_count
            if count:
                own = dict(options or {})
                request = self._request(own.get("visible_devices", ()), count, own)
                assignment = self.assign(request)
                if assignment.ordinals == ():
                    # The script allows no other platform, so JAX uses the GPUs that it sees, against the policy.
                    request = replace(request, visible=request.visible or tuple(range(count)))
                    assignment = self.assign(request)
                return self._filled(own, assignment, request)
            if count == 0:
                self.on_usage(Usage((), ""))
        return options

    def _filled(self, options: dict[str, Any], assignment: Assignment, request: DeviceRequest) -> dict[str, Any]:
        shown = ordinals = request.visible or tuple(range(request.gpu_count))
        if assignment.ordinals:  # with an empty list JAX aborts
            ordinals = assignment.ordinals
            shown = shown_ordinals(ordinals, self._number or 0)
            options["visible_devices"] = list(shown)
        others = [ordinal for ordinal in shown if ordinal not in ordinals]
        if assignment.growth or others:  # JAX must not preallocate memory of a GPU that is not claimed
            options.setdefault("preallocate", False)
        self._shown_count = len(shown)
        self._first_claimed = min(ordinals) if others else 0
        if others:
            # Make the context on the claimed GPU first. Otherwise other jobs would first see this process only on a GPU
            # that it has not claimed.
            with self.guard():
                self.allocation.cuda.begin_use(ordinals)
        limits = self._limit(options, assignment, ordinals)
        words = _memory_in_words(options, limits, self._memory.by_script)
        self.on_usage(Usage(ordinals, words + framework_messages.contexts_beside(self.NAME, self._labels(others))))
        return options

    def _labels(self, ordinals: Sequence[int]) -> list[str]:
        decision = self.allocation.decision
        return [device.label for device in decision.at(ordinals)] if decision else []

    def _limit(
        self, options: dict[str, Any], assignment: Assignment, ordinals: Sequence[int]
    ) -> Sequence[tuple[float, ...]]:
        """Write the memory limit into the client's options, as a fraction; return it in MiB for each GPU.

        Return an empty list if there is no limit, or if the script has set a fraction itself.
        """
        by_script = self._memory.by_script
        parts = [assignment.part(ordinal, by_script=bool(by_script)) for ordinal in ordinals]
        # JAX accepts one fraction for all GPUs. The smallest keeps every GPU within its limit.
        least = min((part for part in parts if part is not None), default=0.0)
        if not least or self._memory.by_flag:
            return []
        memory.limit(options, min(least, by_script or 1.0))
        totals = [] if by_script else [assignment.totals.get(ordinal) for ordinal in ordinals]
        return [(total * least / MIB,) if total else () for total in totals]

    def _request(
        self, visible: Iterable[int], gpu_count: int, options: Mapping[str, Any] | None = None
    ) -> DeviceRequest:
        """Return the script's settings as a request. Store the settings about memory in ``_memory``.

        Args:
            options: The client's options; ``None`` if JAX has not made them yet.
        """
        if options is None:
            options = self._default_options()
        own_options = getattr(sys.modules["jax"].config, "jax_pjrt_client_create_options", "")
        self._memory = memory.read(options, os.environ, own_options, grows=self.allocation.policy.growth)
        self.default_share = self._memory.default_share
        return DeviceRequest(gpu_count, tuple(visible) or None, fraction=self._memory.by_script)

    def _default_options(self) -> Mapping[str, Any]:
        """Return JAX's default options for the client, without those of the script."""
        with ignoring(TypeError, ValueError):  # JAX itself reports an invalid variable
            return dict(self._client().generate_pjrt_gpu_plugin_options())
        return {}

    def on_uncaught(self, error: BaseException) -> None:
        """Report an out-of-memory error, or an index that is too large for JAX's list of devices."""
        super().on_uncaught(error)
        from autogpu.frameworks.jax.index_error import devices_needed

        jax: Any = sys.modules["jax"]
        shown = self._shown_count
        allocation = self.allocation
        needed = devices_needed(error, shown, (jax.devices, jax.local_devices))
        total = len(self.own_decision.ranking.pool) if self.own_decision else 0
        if shown < needed <= total:
            line = framework_messages.few_devices(self.NAME, shown, needed, total, is_rank=allocation.is_rank)
            allocation.say_in_each_rank(line)

    def _may_use_gpus(self) -> bool:
        if self._bridge.config.jax_platforms.value and not self._names_gpus:
            return False
        looks = getattr(getattr(self._bridge, "hardware_utils", None), "has_visible_nvidia_gpu", None)
        if looks is not None and not looks():
            return False
        return self._has_cuda_plugin()

    def _has_cuda_plugin(self) -> bool:
        for folder in getattr(getattr(self._bridge, "jax_plugins", None), "__path__", ()):
            with ignoring(OSError):
                if any(name.startswith("xla_cuda") for name in os.listdir(folder)):  # noqa: PTH208  (imports nothing)
                    return True
        return False

    @property
    def _names_gpus(self) -> bool:
        """True if the script or the shell has set a list of platforms that contains GPUs."""
        platforms = self._bridge.config.jax_platforms.value or ""
        return any(name.strip() in _ALIASES for name in platforms.split(","))

    def _leave_out_gpus(self) -> None:
        """Remove GPUs from JAX's platforms, unless the script or the shell allows only GPUs."""
        platforms = self._bridge.config.jax_platforms.value or _PLATFORM + ",cpu"
        others = [name for name in platforms.split(",") if name.strip() not in _ALIASES]
        if others:
            self._bridge.config.update("jax_platforms", ",".join(others))

    def _flag(self) -> tuple[int, ...]:
        """Return the ordinals in ``jax_cuda_visible_devices``, which ``jax.distributed`` also sets; ``()`` for all."""
        flag = getattr(getattr(self._bridge, "CUDA_VISIBLE_DEVICES", None), "value", "all")
        try:
            return () if flag == "all" else tuple(int(each) for each in flag.split(","))
        except ValueError as error:  # JAX reports the invalid flag
            raise_if_from_script(error)
            return ()


def _counted(name: str) -> int:
    backends = getattr(sys.modules.get("jax._src.xla_bridge"), "_backends", {})
    devices = [device for client in backends.values() for device in client.local_devices()]
    # CPUs and some allocators have no statistics.
    return max([(device.memory_stats() or {}).get(name, 0) for device in devices], default=0)


def _memory_in_words(options: Mapping[str, Any], limits_mib: Sequence[tuple[float, ...]], by_script: float) -> str:
    part = min(by_script, memory.most(options.get(memory.FRACTION, by_script)))
    words = memory_in_words(limits_mib, 0.0 if limits_mib else part, grows=not options.get("preallocate", True))
    is_limited = bool(limits_mib or part)
    return words + (not_enforced(memory.setting_without_limit(options, os.environ)) if is_limited else "")
