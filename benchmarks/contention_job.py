"""One job of ``contention.py``: wait for the start, choose a GPU in one contender's way, use it, end.

Started by the benchmark, once per job, with a JSON object as argument; prints one JSON object a line. It needs nothing
but Python and the contender's own library, so that users who can't read the checkout can run it.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import random
import select
import subprocess  # noqa: F401  (TensorFlow, for whose jobs all this is, has imported it: no contender pays for it here)
import sys
import time
from pathlib import Path
from typing import Any, Callable, NamedTuple

GIB = 1 << 30
MIB = 1 << 20
STEPS = 8
STEP_S = 0.03

# What a user asks for who wants a whole GPU of a tool that knows free memory only.
WHOLE_SHARE = 0.9


class Order(NamedTuple):
    """What the benchmark asks of this job.

    Attributes:
        contender: A key of ``CONTENDERS``.
        need_bytes: ``None`` for a whole GPU.
        use_bytes: What it takes in the end, its CUDA context included.
        total_bytes: Of each GPU.
        go: Read until its end, it starts all jobs in the same instant.
        end: Likewise for their end.
        hold_s: How long it keeps the GPU; ``None``: until ``end``.
        seed: Of all that is random.
        folder: Where a contender can put a lock.
    """

    contender: str
    need_bytes: int | None
    use_bytes: int
    total_bytes: int
    go: int
    end: int
    hold_s: float | None
    seed: int
    folder: str


class Choice(NamedTuple):
    """What a contender came to.

    Attributes:
        gpus: The UUIDs; none for a job that goes on without.
        why: Where there is none, or where the job ended up beside others.
        ordinal: Of the first one for CUDA; ``None`` if the environment is still to be written.
        finish: To be called when the CUDA context exists.
        cap_bytes: What the job may allocate there beside its context; ``None`` for no cap.
    """

    gpus: tuple[str, ...]
    why: str = ""
    ordinal: int | None = None
    finish: Callable[[], None] = lambda: None
    cap_bytes: int | None = None


class Cuda:
    """The few calls of the CUDA driver that a job makes."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL("libcuda.so.1")
        self._context = ctypes.c_void_p()

    def init(self) -> int:
        """Returns how many GPUs there are for this process."""
        count = ctypes.c_int()
        if self._library.cuInit(0) or self._library.cuDeviceGetCount(ctypes.byref(count)):
            return 0
        return count.value

    def make_context(self, ordinal: int) -> bool:
        """Whether the driver granted it."""
        device = ctypes.c_int()
        return not (
            self._library.cuDeviceGet(ctypes.byref(device), ordinal)
            or self._library.cuDevicePrimaryCtxRetain(ctypes.byref(self._context), device)
            or self._library.cuCtxSetCurrent(self._context)
        )

    def allocate(self, size: int) -> bool:
        """Whether there was room."""
        pointer = ctypes.c_uint64()
        return not self._library.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(size))


def autogpu(order: Order) -> Callable[[Cuda], Choice]:
    """The whole path of a process with TensorFlow: what the import does, and from the start on what the context does.

    The second reading, cuInit where TensorFlow has it, what is imported only here, the mutex, the choice, the lease.
    """
    from autogpu import policy
    from autogpu.allocation import Allocation
    from autogpu.devices import cuda as driver
    from autogpu.devices import probe
    from autogpu.errors import NoEligibleDevice, WaitTimeout
    from autogpu.frameworks.base import HookedFramework
    from autogpu.frameworks.model import DeviceRequest, Hooks, OutOfMemory, Usage
    from autogpu.selection.grants import NO_ENGINE
    from autogpu.selection.visible_devices import InitialVisibility

    class Program(HookedFramework):
        """What autogpu takes for a framework here: this job calls CUDA itself, and so has nothing to hook."""

        NAME = "the job"

        @staticmethod
        def find_hooks() -> Hooks:
            return Hooks(found=("choose",))

        def install_hooks(self, hooks: Hooks) -> None:
            """It calls what hooks would call."""

        @staticmethod
        def peak_bytes() -> int:
            return 0

        @staticmethod
        def out_of_memory(error: BaseException) -> OutOfMemory | None:
            return None

    reading = probe.start(os.environ)
    resolved = policy.resolve(os.environ, script=None, working_directory=Path.cwd())
    allocation = Allocation(
        resolved,
        os.environ,
        contextlib.nullcontext,
        grant=NO_ENGINE,
        initial=InitialVisibility(None),
        first_reading=reading,
    )
    program = Program(lambda: allocation, contextlib.nullcontext)
    program.join(allocation)
    program.imported()

    def choose(cuda: Cuda) -> Choice:
        program.prepare()
        count = cuda.init()
        try:
            assignment = program.assign(DeviceRequest(count))
        except NoEligibleDevice as error:
            return Choice((), f"refused: {error}")
        except WaitTimeout as error:
            return Choice((), f"no GPU came free: {error}")
        # A framework that is left the choice takes the first.
        ordinals = (0,) if assignment.ordinals is None else assignment.ordinals
        uuids = driver.visible_uuids() or ()
        why = "left to the framework" if assignment.ordinals is None else ""
        usage = Usage(ordinals, "grows as needed")
        gpus = tuple(uuids[ordinal] for ordinal in ordinals)
        cap = min((cap.bytes for cap in assignment.caps.values()), default=None)
        return Choice(gpus, why, ordinals[0] if ordinals else None, lambda: program.on_usage(usage), cap)

    return choose


def nvitop(order: Order) -> Callable[[Cuda], Choice]:
    """The real package, asked for one GPU with room for the job."""
    from nvitop import select_devices

    def choose(cuda: Cuda) -> Choice:
        room = int(order.total_bytes * WHOLE_SHARE) if order.need_bytes is None else order.need_bytes
        found = select_devices(format="uuid", max_count=1, min_free_memory=room)
        return Choice(tuple(found), "" if found else "none with room")

    return choose


def gputil(order: Order) -> Callable[[Cuda], Choice]:
    """``GPUtil.getFirstAvailable`` as published (1.4.0): the first with load and memory below one half.

    Its algorithm, not the package: that reads nvidia-smi, which the simulated server has none of, and doesn't import
    on Python 3.12. So it is spared the start of nvidia-smi here.
    """
    nvml = import_nvml()

    def choose(cuda: Cuda) -> Choice:
        nvml.nvmlInit()
        for gpu in all_gpus(nvml):
            memory = nvml.nvmlDeviceGetMemoryInfo(gpu)
            load = nvml.nvmlDeviceGetUtilizationRates(gpu).gpu / 100
            if load < 0.5 and memory.used / memory.total < 0.5:
                return Choice((text(nvml.nvmlDeviceGetUUID(gpu)),))
        return Choice((), "none below one half")

    return choose


def setgpu(order: Order) -> Callable[[Cuda], Choice]:
    """``setGPU`` as published (0.0.7): shuffled, then the one with the least share of its memory used.

    Its algorithm, not the package: that one chooses when it is imported and reads gpustat, which reads NVML.
    """
    nvml = import_nvml()
    shuffle = random.Random(order.seed).shuffle

    def choose(cuda: Cuda) -> Choice:
        nvml.nvmlInit()
        gpus = all_gpus(nvml)
        shares = []
        for gpu in gpus:
            memory = nvml.nvmlDeviceGetMemoryInfo(gpu)
            shares.append((memory.used / memory.total, gpu))
        shuffle(shares)
        return Choice((text(nvml.nvmlDeviceGetUUID(min(shares, key=lambda each: each[0])[1])),))

    return choose


def safe_gpu(order: Order) -> Callable[[Cuda], Choice]:
    """``safe_gpu.claim_gpus`` as published (2.0.0): one lock for all from the look until the CUDA context exists.

    Its algorithm, not the package: that one starts nvidia-smi three times, each time inside the lock but the first.
    """
    nvml = import_nvml()
    # Open as long as the process lives: closing any descriptor of the file would drop a lock of this kind.
    lock = os.open(Path(order.folder, "safe_gpu.lock"), os.O_WRONLY | os.O_CREAT, 0o666)

    def choose(cuda: Cuda) -> Choice:
        fcntl.lockf(lock, fcntl.LOCK_EX)
        nvml.nvmlInit()
        free = [gpu for gpu in all_gpus(nvml) if not nvml.nvmlDeviceGetComputeRunningProcesses(gpu)]
        if not free:
            fcntl.lockf(lock, fcntl.LOCK_UN)
            return Choice((), "only found these free: []")
        return Choice((text(nvml.nvmlDeviceGetUUID(free[0])),), finish=lambda: fcntl.lockf(lock, fcntl.LOCK_UN))

    return choose


CONTENDERS = {"autogpu": autogpu, "nvitop": nvitop, "GPUtil": gputil, "setGPU": setgpu, "safe_gpu": safe_gpu}


def import_nvml() -> Any:
    import pynvml  # noqa: TID251  (as the other tools do)

    return pynvml


def all_gpus(nvml: Any) -> list[Any]:
    return [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]


def text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else value


def tell(**fields: Any) -> None:
    print(json.dumps(fields), flush=True)


def use(cuda: Cuda, order: Order, choice: Choice) -> None:
    """Make the context and grow into the memory, little at first, as a job with memory growth does."""
    if choice.ordinal is None:
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(choice.gpus)
        cuda.init()
    has_context = cuda.make_context(choice.ordinal or 0)
    choice.finish()
    tell(event="context", is_there=has_context, time_s=time.monotonic())
    end_s = time.monotonic() + (3600 if order.hold_s is None else order.hold_s)
    left = order.use_bytes - 256 * MIB
    has_room = has_context
    for _ in range(STEPS):
        # Aligned as the driver hands it out, so that a job never takes more than it said.
        size = left // STEPS // (2 * MIB) * (2 * MIB)
        has_room = has_room and cuda.allocate(size)
        if is_over(order.end, min(STEP_S, end_s - time.monotonic())) or time.monotonic() >= end_s:
            break
    tell(event="grown", has_room=has_room)
    is_over(order.end, end_s - time.monotonic())


def is_over(end: int, timeout_s: float) -> bool:
    """Wait until the pipe is closed, ``timeout_s`` at most."""
    return bool(select.select([end], [], [], max(0.0, timeout_s))[0])


def main() -> None:
    order = Order(**json.loads(sys.argv[1]))
    begun_s = time.monotonic()
    choose = CONTENDERS[order.contender](order)
    cuda = Cuda()
    tell(event="ready", import_s=time.monotonic() - begun_s)
    os.read(order.go, 1)
    begun_s = time.monotonic()
    choice = choose(cuda)
    decided_s = time.monotonic()
    times = {"begun_s": begun_s, "decided_s": decided_s}
    tell(event="decided", gpus=choice.gpus, why=choice.why, **times)
    if choice.gpus:
        use(cuda, order, choice)
    # The GPU is given back by the process's end alone, as by any script that simply ends.
    tell(event="ending", time_s=time.monotonic())
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
