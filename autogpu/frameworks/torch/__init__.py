"""PyTorch: hooks in the C++ functions that initialise CUDA, and in Python functions that ask about GPUs.

``cuda`` means the thread's current device, by default ``cuda:0``, and Python can't see which GPU the C++ code uses. So
autogpu claims the GPUs before CUDA counts them. CUDA then finds the claimed GPU under the number that the program is
about to use.
"""

from __future__ import annotations

import os
import re
import sys
import threading
from functools import partial
from typing import Any, Mapping, Sequence

from autogpu import process
from autogpu.engines.launchers import library_count, worker_marker
from autogpu.frameworks.base import caller_named, hooked, is_hooked, part_of, put_back
from autogpu.frameworks.calls import calls
from autogpu.frameworks.cuda_order import CudaOrderFramework
from autogpu.frameworks.model import NOTHING_SAID, Assignment, DeviceRequest, Hooks, OutOfMemory, Usage
from autogpu.frameworks.number import number_of_words
from autogpu.frameworks.torch import libraries
from autogpu.frameworks.torch.at_import import DeviceProperties, KerasWatch, importing_module, ordinal_of
from autogpu.frameworks.torch.counting import GpuCounter
from autogpu.frameworks.torch.number import gpus_named, number_of_process
from autogpu.frozen import replace
from autogpu.reporting.memory import memory_in_words, not_enforced
from autogpu.text import MIB
from autogpu.variables import LIBRARY_COUNT, WORKER

TYPE_CHECKING = False
if TYPE_CHECKING:
    from autogpu.devices.model import CudaProperties

_LAUNCHERS = ("torchrun", "accelerate", "accelerate-launch", "deepspeed")
_LAUNCHER_MODULES = (
    *("torch/distributed/run.py", "torch/distributed/launch.py"),
    *("accelerate/commands/launch.py", "deepspeed/launcher/runner.py", "deepspeed/launcher/launch.py"),
)

# ``torch.cuda._lazy_init`` calls this function once, under a lock, when the script first needs CUDA.
_INIT = "_cuda_init"

# Consequence if a function is missing, keyed by the function's name.
# ``torch.cuda.is_available`` calls the first function.
_OTHERS = {
    "_cuda_getDeviceCount": "a script that only asks for CUDA sees the GPU order from the import",
    "_cuda_setMemoryFraction": "memory.limit has no effect",
}

# Functions of ``torch.cuda`` that bitsandbytes, fastai and other libraries call while they are imported.
_OF_CUDA = ("current_device", "get_device_properties", "set_device")

# This function reads CUDA_VISIBLE_DEVICES, to count GPUs before CUDA starts and to find a GPU in NVML.
_PARSE = "_parse_visible_devices"

# ``torch.multiprocessing.spawn``, Lightning and notebook launchers call this function. Both modules contain it.
_START = "start_processes"
_START_MODULES = ("torch.multiprocessing.spawn", "torch.multiprocessing")

# The code that makes a process group calls this right before NCCL's C++ counts the GPUs. Other code calls it, too.
_GROUPS_MODULE = "torch.distributed.distributed_c10d"
_NCCL = "is_nccl_available"

# PyTorch reads both variables. The second is the newer one.
_ALLOCATOR_SETTINGS = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")

# If this variable is set, PyTorch calls cudaMalloc for each tensor and ignores limits.
_NO_CACHING = "PYTORCH_NO_CUDA_MEMORY_CACHING"

# Up to this PyTorch version, a limit makes a context on its GPU, and makes that GPU the thread's current device.
_LIMIT_MAKES_CONTEXTS = (2, 8)

# The second text is of an error of the driver, for a context or a library of CUDA.
_TEXTS = ("CUDA out of memory", "CUDA error: out of memory")

# The beginning of an error that ``DataParallel`` raises again after a replica's thread has raised it. Errors of worker
# processes of a ``DataLoader`` begin differently.
_THREAD = re.compile(r"Caught \w+ in replica ")


class PyTorch(CudaOrderFramework):
    """PyTorch in this process. A method with the name of a hooked function is the hook of that function."""

    NAME = "PyTorch"  # default_share stays 1: its allocator grows until the driver refuses

    _has_started = False  # True if ``_cuda_init`` has started CUDA
    _limit_makes_contexts = False
    _set_fraction: Any = None
    _said = NOTHING_SAID
    # The code that spreads over all GPUs; "" if there is none, or if it was reported.
    _spreading = ""
    _has_reported_spreading = False

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        # Hooks to remove when CUDA starts, as (module, function name, original function).
        self._until_start: list[tuple[Any, str, Any]] = []
        self._keras: KerasWatch | None = None
        self._gpu_counter: GpuCounter | None = None

    @staticmethod
    def find_hooks() -> Hooks:
        torch: Any = sys.modules.get("torch")
        version = str(getattr(torch, "__version__", "?"))
        built = getattr(torch, "version", None)
        if getattr(built, "hip", None):
            return Hooks(version, obstacle="this PyTorch is built for ROCm, and autogpu supports NVIDIA GPUs only")
        if not getattr(built, "cuda", None):
            return Hooks(version)  # built without CUDA: there is nothing to do
        if is_launcher(getattr(sys, "argv", []), getattr(sys, "orig_argv", [])):  # orig_argv since 3.10
            return Hooks(version)  # the ranks are other processes
        core = torch._C
        if not callable(getattr(core, _INIT, None)):
            return Hooks(version, obstacle=f"this PyTorch ({version}) has no torch._C.{_INIT}")
        found = [name for name in _OTHERS if callable(getattr(core, name, None))]
        missing = {f"torch._C.{name}": effect for name, effect in _OTHERS.items() if name not in found}
        if not _start_function():
            missing[f"torch.multiprocessing.{_START}"] = "the workers of a spawn don't get their GPUs in one claim"
        return Hooks(version, (_INIT, *found), missing)

    def install_hooks(self, hooks: Hooks) -> None:
        core: Any = sys.modules["torch"]._C
        if is_hooked(core._cuda_init):
            return
        numbers = _version_numbers(hooks.version)
        self._limit_makes_contexts = numbers is not None and numbers <= _LIMIT_MAKES_CONTEXTS
        # autogpu sets its limits with the original function: the hook is for limits of the script.
        self._set_fraction = getattr(core, "_cuda_setMemoryFraction", None)
        for name in hooks.found:
            setattr(core, name, hooked(getattr(core, name), getattr(self, name)))
        cuda: Any = sys.modules.get("torch.cuda")
        # Never remove these hooks: pickle and torch.compile identify a function by the object that the module holds.
        for name in filter(partial(hasattr, cuda), _OF_CUDA):
            setattr(cuda, name, hooked(getattr(cuda, name), getattr(self, name)))
        self._hook_device_count(cuda)
        if callable(getattr(cuda, _PARSE, None)):
            setattr(cuda, _PARSE, hooked(getattr(cuda, _PARSE), self.parse_visible_devices))
        self._hook_start()
        groups: Any = sys.modules.get(_GROUPS_MODULE)
        if callable(getattr(groups, _NCCL, None)):
            setattr(groups, _NCCL, hooked(getattr(groups, _NCCL), self.is_nccl_available))

    def _hook_start(self) -> None:
        start = _start_function()
        if start:
            replaced = hooked(start, self._start_processes)
            for module in map(sys.modules.get, _START_MODULES):
                if getattr(module, _START, None) is start:
                    setattr(module, _START, replaced)

    def _hook_device_count(self, cuda: Any) -> None:
        original = getattr(cuda, "device_count", None)
        if callable(original):
            cuda.device_count = hooked(original, self.device_count)
            # PyTorch 2.0 caches the count, and scripts clear that cache.
            if hasattr(original, "cache_clear"):
                cuda.device_count.cache_clear = original.cache_clear

    @staticmethod
    def peak_bytes() -> int:
        """Return the peak of reserved memory, including memory that PyTorch keeps for later tensors."""
        return max((each.get("reserved_bytes.all.peak", 0) for each in _counted()), default=0)

    @classmethod
    def current_bytes(cls) -> int:
        return max((each.get("reserved_bytes.all.current", 0) for each in _counted()), default=0)

    @classmethod
    def needed_bytes(cls, *, growth: bool) -> int:
        """Return the peak; 0 if the program caught an out-of-memory error, because the peak then shows no need."""
        return 0 if any(each.get("num_ooms") for each in _counted()) else cls.peak_bytes()

    @staticmethod
    def out_of_memory(error: BaseException) -> OutOfMemory | None:
        text = str(error)
        if _THREAD.match(text):
            text = text[max(map(text.find, _TEXTS)) :]
        # PyTorch up to 1.12 raises a RuntimeError, later versions a subclass.
        if not isinstance(error, RuntimeError) or not text.startswith(_TEXTS):
            return None
        return OutOfMemory.in_text(text, "Tried to allocate SIZE", r"GPU (\d+)[ ;]", "SIZE allowed")

    def _cuda_init(self, original: Any) -> None:
        for holder, name, its_original in self._until_start:
            put_back(holder, name, its_original)
        self._before()
        try:
            original()
        except BaseException:
            self._on_failure()
            raise
        self._has_started = True
        self._assign()
        with self.lock, self.guard():
            limits = self._limits(self.assignment)
            if self._limit_makes_contexts and limits:
                # Use another thread: each limit makes its GPU the current device of the thread.
                thread = threading.Thread(target=self._limit, args=(limits,))
                thread.start()
                thread.join()
            else:
                self._limit(limits)

    def _cuda_getDeviceCount(self, original: Any) -> int:
        gpus = self._gpus_for_an_import()
        certain = self._certain_count() if gpus is None else len(gpus)
        if certain:
            return certain
        count: int
        if gpus is not None:
            count = original()  # 0, with PyTorch's own warning
            return count
        self._before(is_question=True)
        count = original()
        if count <= 0:
            self._on_failure()
        elif not self._assign():
            return 0
        # Remove the hook: scripts ask again and again, and CUDA's count stays the same from now on.
        put_back(sys.modules["torch"]._C, "_cuda_getDeviceCount", original)
        return count

    def _cuda_setMemoryFraction(self, original: Any, fraction: float, device: int) -> None:
        """Set the script's own limit, cut to the ceiling of the GPU."""
        part = None
        with self.guard():
            assignment = self.assignment
            part = assignment.part(device, by_script=True) if assignment else None
        original(fraction if part is None else min(fraction, part), device)

    def current_device(self, original: Any) -> int:
        return int(original()) if self._gpus_for_an_import() is None else 0

    def set_device(self, original: Any, device: Any) -> None:
        if self._gpus_for_an_import() is None:
            original(device)
        else:
            # PyTorch runs this call as soon as CUDA has started.
            sys.modules["torch"].cuda._lazy_call(partial(original, device))

    def device_count(self, original: Any) -> int:
        """Return the number of GPUs; ``select.count`` if a library asks that would use all of them."""
        caller = sys._getframe(1).f_back  # None if C++ or the end of the interpreter calls
        self._claim_for_question()
        if libraries.is_lightning(caller):
            libraries.hook_lightning(self.count_for_library)
        if libraries.is_trainer(caller):
            return self.count_for_library(original)
        self._spreading = libraries.spreading(caller) or self._spreading
        if self._spreading and self.assignment is not None:
            self._report_spreading()
        return int(original())

    def _claim_for_question(self) -> None:
        """Claim if the process is to see only claimed GPUs: PyTorch counts the GPUs in the environment's list."""
        is_first_question = False
        with self.lock, self.guard():
            allocation = self.allocation
            if allocation.gpu_list.hides_others and allocation.holding is None:
                has_started = allocation.cuda.visible_uuids() is not None
                is_first_question = not has_started and not importing_module()
        if is_first_question:
            self._before(is_question=True)

    def count_for_library(self, original: Any) -> int:
        visible = int(original())
        count = None
        with self.lock, self.guard():
            count = self._count_for_library(visible)
        return visible if count is None else count

    def _count_for_library(self, visible: int) -> int:
        allocation = self.allocation
        rank = allocation.granted_by_now().rank
        if rank is not None:
            # Lightning starts its ranks itself, and each rank asks again. Other launchers set the number of ranks.
            return min(visible, library_count(rank, os.environ) or visible)
        is_listed = allocation.gpu_list.spec_with(allocation.grant).value is not None
        is_set = is_listed or number_of_words(getattr(sys, "argv", [])[1:]) is not None
        claimed = None if self.assignment is None else self.assignment.ordinals or ()
        count = libraries.count_for_library(visible, allocation.policy.count, claimed=claimed, is_set=is_set)
        os.environ[LIBRARY_COUNT] = str(count)
        return count

    def get_device_properties(self, original: Any, device: Any = None) -> Any:
        gpus = self._gpus_for_an_import()
        ordinal = ordinal_of(device) if gpus else None
        found = gpus[ordinal] if gpus and ordinal is not None and ordinal < len(gpus) else None
        return original(device) if found is None else DeviceProperties(found, partial(original, device))

    def parse_visible_devices(self, original: Any) -> Any:
        """Return the list that CUDA reads, so that PyTorch's count and its monitors agree with CUDA."""
        indices: list[int] = []
        with self.guard():
            # Return indices and not UUIDs: to find a UUID, PyTorch would query every card, even one that hangs.
            indices = self._counter.nvml_indices()
        return indices or original()

    def is_nccl_available(self, original: Any) -> bool:
        if caller_named("_new_process_group_helper") is not None:
            is_rank = False
            with self.guard():
                is_rank = self.allocation.is_rank
            # A program that is not a rank has not selected its GPU yet.
            if is_rank:
                self._before()
        return bool(original())

    @property
    def _counter(self) -> GpuCounter:
        if self._gpu_counter is None:
            self._gpu_counter = GpuCounter(self.allocation)
        return self._gpu_counter

    def _certain_count(self) -> int | None:
        with self.lock, self.guard():
            built_for = _version_numbers(str(sys.modules["torch"].version.cuda))
            if built_for is not None:
                return self._counter.certain_count(built_for)
        return None

    def _gpus_for_an_import(self) -> Sequence[CudaProperties | None] | None:
        """If an installed module is being imported, return the GPUs that CUDA will count; else ``None``.

        Such a module must not claim a GPU or wait for one, because its program may need none.
        """
        if self._has_started:
            return None
        with self.lock, self.guard():
            built_for = _version_numbers(str(sys.modules["torch"].version.cuda))
            has_started = self.allocation.cuda.visible_uuids() is not None
            asking = importing_module() if built_for is not None and not has_started else ""
            if asking.startswith("keras.") and self._keras is None:
                self._keras = KerasWatch(self._hook_until_start)
            if built_for is not None and asking:
                return self._counter.gpus(built_for)
        return None

    def _hook_until_start(self, holder: Any, name: str) -> None:
        """Replace the function ``holder.name`` by the method of the same name of this class, until CUDA starts."""
        original = getattr(holder, name, None)
        if callable(original):
            self._until_start.append((holder, name, original))
            setattr(holder, name, hooked(original, getattr(self, name)))

    def torch_seed_generator(self, original: Any, *arguments: Any, **options: Any) -> Any:
        """Claim a GPU before Keras makes a CUDA generator, because that starts CUDA in C++, which calls no hook."""
        core: Any = sys.modules.get("keras.src.backend.torch.core")
        if str(getattr(core, "get_device", str)()).startswith("cuda"):
            self._before()
        return original(*arguments, **options)

    def _before(self, *, is_question: bool = False) -> None:
        """Prepare for CUDA's start. With ``is_question``, the script only asks about the GPUs so far."""
        with self.lock, self.guard():
            leading = list(calls("torch"))
            arguments = getattr(sys, "argv", [])[1:]
            number = number_of_process(leading, arguments, _index_of)
            named = gpus_named(leading, _index_of)
            if is_question and self.allocation.gpu_list.hides_others:
                # The code that asks does not use a GPU yet, so a "cuda" in it does not mean GPU 0.
                told = number_of_words(arguments)
                number = number if told is None else told
            # DataParallel without device_ids names all GPUs, which is not a choice of the script.
            named = named if len(named) < (self.gpu_count or 0) else ()
            fraction = _fraction_of_settings(os.environ) or _fraction_of_caller()
            places = () if number is None and process.is_worker() else named or (number or 0,)
            self._said = DeviceRequest(0, count=len(named), fraction=fraction, places=places)
            self.prepare(self._said)
            self.allocation.hide_gpus_if_cpu_only()

    def _on_failure(self) -> None:
        """Release the claim and report that PyTorch has no GPU, because of the policy or a fault of the machine."""
        with self.lock, self.guard():
            self.on_unused()
            self.on_usage(Usage((), ""))

    def _assign(self) -> bool:
        """Assign the GPUs that CUDA has counted. Return False if the process gets none."""
        with self.lock, self.guard():
            count = self.gpu_count or 0
            places = self._said.places
            assignment = self.assign(replace(self._said, gpu_count=count))
            ordinals = assignment.ordinals
            if ordinals is None:
                # Without places, this is a worker whose GPU number is unknown. It uses any one of the GPUs.
                ordinals = (places[0] if places[0] < count else 0,) if places else tuple(range(count))
            limits = [
                (assignment.caps[ordinal].bytes / MIB,) if ordinal in assignment.caps else () for ordinal in ordinals
            ]
            self.on_usage(Usage(ordinals, _memory(limits, self._said.fraction)))
        if self._spreading:
            self._report_spreading()
        assigned = self.assignment
        return assigned is None or assigned.ordinals != ()

    def _report_spreading(self) -> None:
        with self.lock, self.guard():
            spreading = self._spreading
            self._spreading = ""
            if not self._has_reported_spreading:
                self._has_reported_spreading = True
                self.on_spreading(spreading)

    def _limits(self, assignment: Assignment | None) -> Mapping[int, float]:
        if assignment is None or self._set_fraction is None:
            return {}
        by_settings = _fraction_of_settings(os.environ)
        ordinals = (assignment.ordinals or ()) if self._limit_makes_contexts else assignment.totals
        parts = {ordinal: assignment.part(ordinal, by_script=bool(by_settings)) for ordinal in ordinals}
        return {ordinal: min(by_settings or 1.0, part) for ordinal, part in parts.items() if part is not None}

    def _limit(self, limits: Mapping[int, float]) -> None:
        with self.guard():
            for ordinal, part in limits.items():
                self._set_fraction(part, ordinal)

    def _start_processes(
        self, original: Any, fn: Any, args: Any = (), nprocs: Any = 1, *more: Any, **options: Any
    ) -> Any:
        with self.guard():
            job = self.let_workers_choose(nprocs) if isinstance(nprocs, int) and _runs_this_python() else ""
            if job:
                fn = partial(_as_worker, fn, nprocs, job)  # can be pickled like the function
        return original(fn, args, nprocs, *more, **options)


def _start_function() -> Any:
    """Return ``start_processes``; ``None`` if this PyTorch does not have it."""
    return getattr(sys.modules.get(_START_MODULES[0]), _START, None)


def is_launcher(argv: Sequence[str], command: Sequence[str] = ()) -> bool:
    """True if the program starts the ranks of a job, and asks for GPUs only on their behalf.

    While ``-m`` imports a module's package, only ``command``, the whole command line, contains the module's name.
    """
    path = str(argv[0]) if argv else ""
    if path == "-m" and path in command:
        following = command[list(command).index(path) + 1 :]
        path = following[0].replace(".", "/") + ".py" if following else ""
    return path.rpartition("/")[2] in _LAUNCHERS or path.endswith(_LAUNCHER_MODULES)


def _counted() -> list[dict[str, int]]:
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    if cuda is None or not cuda.is_initialized():
        return []
    return [cuda.memory_stats(number) for number in range(cuda.device_count())]


def _version_numbers(version: str) -> tuple[int, int] | None:
    found = re.match(r"(\d+)\.(\d+)", version)
    return (int(found[1]), int(found[2])) if found else None


def _index_of(value: Any) -> int | None:
    return (value.index or 0) if type(value) is sys.modules["torch"].device and value.type == "cuda" else None


def _fraction_of_settings(environ: Mapping[str, str]) -> float:
    """Return the part of each GPU to which the environment limits the allocator; 0 if there is no such limit."""
    texts = (environ.get(name, "") for name in _ALLOCATOR_SETTINGS)
    found = (re.search(r"\bper_process_memory_fraction\s*:\s*([0-9.eE+-]+)", text) for text in texts)
    return next((part_of(each.group(1)) for each in found if each), 0.0)


def _fraction_of_caller() -> float:
    """Return the part that a running ``set_per_process_memory_fraction`` sets; 0 if the stack has no such call."""
    frame = caller_named("set_per_process_memory_fraction")
    fraction = frame.f_locals.get("fraction") if frame is not None else None
    return part_of(fraction) if isinstance(fraction, (int, float)) else 0.0


def _memory(limits_mib: Sequence[tuple[float, ...]], fraction: float) -> str:
    memory = memory_in_words(limits_mib, fraction, grows=True)
    is_ignored = os.environ.get(_NO_CACHING, "") not in ("", "0")
    is_limited = bool(fraction) or any(limits_mib)
    return memory + not_enforced(f"{_NO_CACHING}={os.environ[_NO_CACHING]}") if is_limited and is_ignored else memory


def _as_worker(function: Any, count: int, job: str, number: int, *args: Any) -> Any:
    """Set the marker of this worker, then run ``function``. No other start on this host has the same ``job``."""
    os.environ[WORKER] = worker_marker(number, count, job)
    return function(number, *args)


def _runs_this_python() -> bool:
    """True if workers run this Python. A program may have set another Python, which may not have autogpu."""
    spawn = sys.modules.get("multiprocessing.spawn")
    return spawn is None or os.fsdecode(spawn.get_executable() or "") == sys.executable
