"""Where PyTorch is hooked into: functions of ``torch._C``, each of which Python looks up there when it calls it."""

from __future__ import annotations

import functools
import os
import sys
from pathlib import Path

from autogpu.frameworks.base import Hooks
from autogpu.frameworks.torch.spawn import START, follow_start, has_start
from autogpu.frameworks.torch.start import CudaStart

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Mapping, Sequence

    from autogpu.frameworks.base import GpuAllocator

    Wrap = Callable[[Any, CudaStart], Any]

_INSTALLED = "_autogpu_hook"

_LAUNCHERS = ("torchrun", "accelerate", "accelerate-launch", "deepspeed")
_LAUNCHER_MODULES = (
    *("torch/distributed/run.py", "torch/distributed/launch.py"),
    *("accelerate/commands/launch.py", "deepspeed/launcher/runner.py", "deepspeed/launcher/launch.py"),
)


def find_hooks() -> Hooks:
    """See :meth:`autogpu.frameworks.base.Framework.find_hooks`."""
    torch: Any = sys.modules.get("torch")
    version, built = str(getattr(torch, "__version__", "?")), getattr(torch, "version", None)
    if getattr(built, "hip", None):
        return Hooks(version, obstacle="this PyTorch is built for ROCm, and autogpu supports NVIDIA GPUs only")
    if not getattr(built, "cuda", None):
        return Hooks(version, has_essential=True)  # built without CUDA: there is nothing to do
    if is_launcher(getattr(sys, "argv", []), _process_command()):
        return Hooks(version, has_essential=True)  # its ranks are processes of their own
    core = torch._C
    if not callable(getattr(core, _INIT, None)):
        return Hooks(version, obstacle=f"this PyTorch ({version}) has no torch._C.{_INIT}")
    found = [name for name in _OTHERS if callable(getattr(core, name, None))]
    missing = {f"torch._C.{name}": effect for name, (effect, _) in _OTHERS.items() if name not in found}
    if not has_start():
        missing[f"torch.multiprocessing.{START}"] = "the GPUs of all workers of a spawn are claimed together"
    return Hooks(version, (_INIT, *found), missing, has_essential=True)


def install_hooks(allocator: GpuAllocator) -> Hooks:
    """See :meth:`autogpu.frameworks.base.Framework.install_hooks`."""
    hooks = find_hooks()
    if hooks.obstacle or not hooks.found:
        return hooks
    core: Any = sys.modules["torch"]._C
    if not getattr(getattr(core, _INIT), _INSTALLED, False):
        start = CudaStart(allocator, core, hooks.version)
        for name in hooks.found:
            wrap = _initialise if name == _INIT else _OTHERS[name][1]
            setattr(core, name, wrap(getattr(core, name), start))
        setattr(getattr(core, _INIT), _INSTALLED, True)
        follow_start(allocator)
    return hooks


def fallback_environment(environ: Mapping[str, str], growth: bool) -> dict[str, str]:
    """See :meth:`autogpu.frameworks.base.Framework.fallback_environment`."""
    return {}


def is_launcher(argv: Sequence[str], command: Sequence[str] = ()) -> bool:
    """The program starts the ranks of a job, and asks for GPUs only on their behalf.

    While ``-m`` imports a module's package, only the whole ``command`` of the process names the module.
    """
    path = str(argv[0]) if argv else ""
    if path == "-m" and path in command:
        following = command[list(command).index(path) + 1 :]
        path = following[0].replace(".", "/") + ".py" if following else ""
    return path.rpartition("/")[2] in _LAUNCHERS or path.endswith(_LAUNCHER_MODULES)


def _process_command() -> list[str]:
    """The words with which this process was started, Python's own included; ``[]`` where the system does not tell."""
    try:
        words = Path("/proc/self/cmdline").read_bytes().split(b"\0")
    except OSError:
        return []
    return [os.fsdecode(word) for word in words[:-1]]


def _initialise(original: Any, start: CudaStart) -> Any:
    @functools.wraps(original)
    def _cuda_init() -> None:
        start.before()
        try:
            original()
        except BaseException:
            start.on_failure()
            raise
        start.after_counting()
        start.after_init()

    return _cuda_init


def _count(original: Any, start: CudaStart) -> Any:
    @functools.wraps(original)
    def _cuda_getDeviceCount() -> int:
        certain = start.certain_count()
        if certain:
            return certain
        start.before()
        count: int = original()
        if count <= 0:
            start.on_failure()
        elif not start.after_counting():
            return 0
        # Scripts ask again and again; CUDA's answer is the same from now on.
        start.put_back("_cuda_getDeviceCount", _cuda_getDeviceCount, original)
        return count

    return _cuda_getDeviceCount


def _set_fraction(original: Any, start: CudaStart) -> Any:
    start.set_fraction = original

    @functools.wraps(original)
    def _cuda_setMemoryFraction(fraction: float, device: int) -> None:
        original(start.allowed_fraction(fraction, device), device)

    return _cuda_setMemoryFraction


# ``torch.cuda._lazy_init`` calls it once, under a lock, for the first that needs CUDA.
_INIT = "_cuda_init"

# By name, what is not in force without it, and how it is replaced. ``torch.cuda.is_available`` counts.
_OTHERS: Mapping[str, tuple[str, Wrap]] = {
    "_cuda_getDeviceCount": ("a script that asks whether there is CUDA keeps the order of the import", _count),
    "_cuda_setMemoryFraction": ("memory.limit", _set_fraction),
}
