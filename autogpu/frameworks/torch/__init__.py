"""PyTorch: the functions of its C++ that initialise CUDA, and what is set there.

``cuda`` and ``cuda:0`` are a thread's current device, and C++ never tells Python which GPU it uses. So the GPUs are
claimed before CUDA counts them, and CUDA finds the claimed one under the number that the program is about to use.
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

# ``torch.cuda._lazy_init`` calls it once, under a lock, for the first that needs CUDA.
_INIT = "_cuda_init"

# By name, what is not in force without it. ``torch.cuda.is_available`` counts.
_OTHERS = {
    "_cuda_getDeviceCount": "a script that asks whether there is CUDA keeps the order of the import",
    "_cuda_setMemoryFraction": "memory.limit",
}

# Functions of ``torch.cuda`` that bitsandbytes, fastai and other libraries call while they are imported.
_OF_CUDA = ("current_device", "get_device_properties", "set_device")

# Reads the variable to count GPUs before CUDA starts, and to find a GPU in NVML.
_PARSE = "_parse_visible_devices"

# Called by ``torch.multiprocessing.spawn``, by Lightning and by notebook launchers; PyTorch names it in both modules.
_START = "start_processes"
_START_MODULES = ("torch.multiprocessing.spawn", "torch.multiprocessing")

# Asked there by what makes a group of processes, right before NCCL's C++ counts the GPUs; and elsewhere.
_GROUPS_MODULE = "torch.distributed.distributed_c10d"
_NCCL = "is_nccl_available"

# Both are read by PyTorch, of which the second is newer.
_ALLOCATOR_SETTINGS = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")

# If this variable is set, PyTorch calls cudaMalloc for each tensor and ignores limits.
_NO_CACHING = "PYTORCH_NO_CUDA_MEMORY_CACHING"

# Up to here a limit makes a context, and its GPU the thread's current device.
_LIMIT_MAKES_CONTEXTS = (2, 8)

# The second is the driver's, for a context or a library of CUDA.
_TEXTS = ("CUDA out of memory", "CUDA error: out of memory")

# How it begins where ``DataParallel`` raises it anew; a worker process of a ``DataLoader`` is no replica.
_THREAD = re.compile(r"Caught \w+ in replica ")


class PyTorch(CudaOrderFramework):
    """CUDA in one process, as PyTorch starts it: methods named as a function of ``torch._C`` are its hook."""

    NAME = "PyTorch"  # its allocator grows until the driver refuses

    _has_started = False  # CUDA, by the function that is hooked for it
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
        if is_launcher(getattr(sys, "argv", []), getattr(sys, "orig_argv", [])):  # the second since 3.10
            return Hooks(version)  # its ranks are processes of their own
        core = torch._C
        if not callable(getattr(core, _INIT, None)):
            return Hooks(version, obstacle=f"this PyTorch ({version}) has no torch._C.{_INIT}")
        found = [name for name in _OTHERS if callable(getattr(core, name, None))]
        missing = {f"torch._C.{name}": effect for name, effect in _OTHERS.items() if name not in found}
        if not _start_function():
            missing[f"torch.multiprocessing.{_START}"] = "the GPUs of all workers of a spawn are claimed together"
        return Hooks(version, (_INIT, *found), missing)

    def install_hooks(self, hooks: Hooks) -> None:
        core: Any = sys.modules["torch"]._C
        if is_hooked(core._cuda_init):
            return
        numbers = _version_numbers(hooks.version)
        self._limit_makes_contexts = numbers is not None and numbers <= _LIMIT_MAKES_CONTEXTS
        # Not by our hook, which has a script in mind.
        self._set_fraction = getattr(core, "_cuda_setMemoryFraction", None)
        for name in hooks.found:
            setattr(core, name, hooked(getattr(core, name), getattr(self, name)))
        cuda: Any = sys.modules.get("torch.cuda")
        # These stay: pickle and torch.compile know a function by the object that the module holds.
        for name in filter(partial(hasattr, cuda), _OF_CUDA):
            setattr(cuda, name, hooked(getattr(cuda, name), getattr(self, name)))
        self._hook_device_count(cuda)
        if callable(getattr(cuda, _PARSE, None)):
            setattr(cuda, _PARSE, hooked(getattr(cuda, _PARSE), self.parse_visible_devices))
        start = _start_function()
        replaced = hooked(start, self._start_processes) if start else None
        for module in map(sys.modules.get, _START_MODULES):
            if start and getattr(module, _START, None) is start:
                setattr(module, _START, replaced)
        groups: Any = sys.modules.get(_GROUPS_MODULE)
        if callable(getattr(groups, _NCCL, None)):
            setattr(groups, _NCCL, hooked(getattr(groups, _NCCL), self.is_nccl_available))

    def _hook_device_count(self, cuda: Any) -> None:
        original = getattr(cuda, "device_count", None)
        if callable(original):
            cuda.device_count = hooked(original, self.device_count)
            # PyTorch 2.0 caches the answer, and scripts clear that cache.
            if hasattr(original, "cache_clear"):
                cuda.device_count.cache_clear = original.cache_clear

    @staticmethod
    def peak_bytes() -> int:
        """With what it keeps for later tensors."""
        return max((each.get("reserved_bytes.all.peak", 0) for each in _counted()), default=0)

    @classmethod
    def current_bytes(cls) -> int:
        return max((each.get("reserved_bytes.all.current", 0) for each in _counted()), default=0)

    @classmethod
    def needed_bytes(cls, *, growth: bool) -> int:
        """0 where the program caught an out-of-memory error: its peak does not tell what it needs."""
        return 0 if any(each.get("num_ooms") for each in _counted()) else cls.peak_bytes()

    @staticmethod
    def out_of_memory(error: BaseException) -> OutOfMemory | None:
        text = str(error)
        if _THREAD.match(text):
            text = text[max(map(text.find, _TEXTS)) :]
        # A RuntimeError up to 1.12, and a class of its own under it since.
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
                # Each would make its GPU the thread's current one.
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
        # Scripts ask again and again; CUDA's answer is the same from now on.
        put_back(sys.modules["torch"]._C, "_cuda_getDeviceCount", original)
        return count

    def _cuda_setMemoryFraction(self, original: Any, fraction: float, device: int) -> None:
        """Cut a script's own limit to the most that it may come to."""
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
        """Return the number of GPUs; ``select.count`` to a library that would use all of them."""
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
        """Claim if the process is to see the claimed GPUs alone: PyTorch answers by the list in the environment."""
        is_first_question = False
        with self.lock, self.guard():
            allocation = self.allocation
            if allocation.gpu_list.hides_others and allocation.holding is None:
                has_started = allocation.cuda.visible_uuids() is not None
                is_first_question = not has_started and not importing_module()
        if is_first_question:
            self._before(is_question=True)

    def count_for_library(self, original: Any) -> int:
        """Return the number of GPUs for a library that would use all that ``original`` counts."""
        visible = int(original())
        count = None
        with self.lock, self.guard():
            count = self._count_for_library(visible)
        return visible if count is None else count

    def _count_for_library(self, visible: int) -> int:
        allocation = self.allocation
        rank = allocation.granted_by_now().rank
        if rank is not None:
            # Lightning starts its ranks itself, and each of them asks again. Every other launcher sets their number.
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
            # No UUIDs: PyTorch would ask every card for its own, also one that hangs.
            indices = self._counter.nvml_indices()
        return indices or original()

    def is_nccl_available(self, original: Any) -> bool:
        if caller_named("_new_process_group_helper") is not None:
            is_rank = False
            with self.guard():
                is_rank = self.allocation.is_rank
            # A program of any other kind has yet to say which GPU it uses.
            if is_rank:
                self._before()
        return bool(original())

    @property
    def _counter(self) -> GpuCounter:
        if self._gpu_counter is None:
            self._gpu_counter = GpuCounter(self.allocation)
        return self._gpu_counter

    def _certain_count(self) -> int | None:
        """How many GPUs CUDA will count, where that is certain before it is started; else ``None``."""
        with self.lock, self.guard():
            built_for = _version_numbers(str(sys.modules["torch"].version.cuda))
            if built_for is not None:
                return self._counter.certain_count(built_for)
        return None

    def _gpus_for_an_import(self) -> Sequence[CudaProperties | None] | None:
        """Return the GPUs that CUDA will count if an installed module is being imported, else ``None``.

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
        """Claim a GPU first if Keras makes a CUDA generator: that starts CUDA in C++, which calls none of our hooks."""
        core: Any = sys.modules.get("keras.src.backend.torch.core")
        if str(getattr(core, "get_device", str)()).startswith("cuda"):
            self._before()
        return original(*arguments, **options)

    def _before(self, *, is_question: bool = False) -> None:
        """CUDA is about to be initialised, if it is not already, or the script asks a question about the GPUs."""
        with self.lock, self.guard():
            leading = list(calls("torch"))
            arguments = getattr(sys, "argv", [])[1:]
            number = number_of_process(leading, arguments, _index_of)
            named = gpus_named(leading, _index_of)
            if is_question and self.allocation.gpu_list.hides_others:
                # The code that asks does not use a GPU yet, and its "cuda" says nothing about the number.
                told = number_of_words(arguments)
                number = number if told is None else told
            # All of them are named for a script that names none.
            named = named if len(named) < (self.gpu_count or 0) else ()
            fraction = _fraction_of_settings(os.environ) or _fraction_of_caller()
            places = () if number is None and process.is_worker() else named or (number or 0,)
            self._said = DeviceRequest(0, count=len(named), fraction=fraction, places=places)
            self.prepare(self._said)
            self.allocation.hide_gpus_if_cpu_only()

    def _on_failure(self) -> None:
        """There is no CUDA, or no GPU: of the policy's doing, or of the machine's."""
        with self.lock, self.guard():
            self.on_unused()
            self.on_usage(Usage((), ""))

    def _assign(self) -> bool:
        """Assign the GPUs that CUDA has counted; false if the process is to have none."""
        with self.lock, self.guard():
            count = self.gpu_count or 0
            places = self._said.places
            assignment = self.assign(replace(self._said, gpu_count=count))
            ordinals = assignment.ordinals
            if ordinals is None:
                # A worker whose number is not known uses one of all.
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
                fn = partial(_as_worker, fn, nprocs, job)  # pickled like the function
        return original(fn, args, nprocs, *more, **options)


def _start_function() -> Any:
    """``None`` where this PyTorch has none such."""
    return getattr(sys.modules.get(_START_MODULES[0]), _START, None)


def is_launcher(argv: Sequence[str], command: Sequence[str] = ()) -> bool:
    """The program starts the ranks of a job, and asks for GPUs only on their behalf.

    While ``-m`` imports a module's package, only the whole ``command`` of the process names the module.
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
    """The part of each GPU to which the script's or the shell's settings limit the allocator; 0 where they don't."""
    texts = (environ.get(name, "") for name in _ALLOCATOR_SETTINGS)
    found = (re.search(r"\bper_process_memory_fraction\s*:\s*([0-9.eE+-]+)", text) for text in texts)
    return next((part_of(each.group(1)) for each in found if each), 0.0)


def _fraction_of_caller() -> float:
    """The part to which a script is just limiting the allocator, where that is what starts CUDA; 0 where it is not."""
    frame = caller_named("set_per_process_memory_fraction")
    fraction = frame.f_locals.get("fraction") if frame is not None else None
    return part_of(fraction) if isinstance(fraction, (int, float)) else 0.0


def _memory(limits_mib: Sequence[tuple[float, ...]], fraction: float) -> str:
    """Describe how PyTorch allocates memory."""
    memory = memory_in_words(limits_mib, fraction, grows=True)
    is_ignored = os.environ.get(_NO_CACHING, "") not in ("", "0")
    is_limited = bool(fraction) or any(limits_mib)
    return memory + not_enforced(f"{_NO_CACHING}={os.environ[_NO_CACHING]}") if is_limited and is_ignored else memory


def _as_worker(function: Any, count: int, job: str, number: int, *args: Any) -> Any:
    """Tell this process which of the workers it is: ``job`` names their start, and no other of the host."""
    os.environ[WORKER] = worker_marker(number, count, job)
    return function(number, *args)


def _runs_this_python() -> bool:
    """Workers run in this environment; a program may have named another Python, which may have no autogpu."""
    spawn = sys.modules.get("multiprocessing.spawn")
    return spawn is None or os.fsdecode(spawn.get_executable() or "") == sys.executable
