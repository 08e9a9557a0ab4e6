"""A fake driver and a fake framework on plain values, for tests of the code between them.

Each fake implements the interface of the real one: ``FakeDriver`` implements
:class:`autogpu.devices.model.DeviceReader`, ``FakeCuda`` :class:`autogpu.devices.model.CudaDriver` and
``FakeFramework`` :class:`autogpu.frameworks.base.HookedFramework`.
"""

import os
from contextlib import contextmanager

from autogpu import activation
from autogpu.devices.model import CudaAttributes, CudaProperties, FailureCause, Inventory, Process
from autogpu.frameworks.base import HookedFramework
from autogpu.frameworks.cuda_order import CudaOrderFramework
from autogpu.frameworks.model import DeviceRequest, Hooks, OutOfMemory, Usage
from autogpu.frozen import replace
from tests.support.values import inventory


class FakeReading:
    """A reading in progress. Its result is ``inventory``; with ``None`` it never completes."""

    def __init__(self, inventory):
        self.inventory = inventory
        self.is_closed = False
        self.is_running = inventory is None

    def result(self, deadline_s):
        return self.inventory

    def close(self):
        self.is_closed = True


class FakeDriver:
    """A fake NVML with these GPUs: ``FakeDriver(gpu(0, used_gib=30), gpu(1))``.

    Attributes:
        now: Result of the next reading; ``None`` if that reading does not complete in time.
        taken: Number of readings started.
    """

    def __init__(self, *devices, **fields):
        self.now = inventory(*devices, **fields)
        self.taken = 0

    @classmethod
    def failing(cls, failure, cause=FailureCause.DRIVER):
        driver = cls()
        driver.now = Inventory(failure=failure, failure_cause=cause)
        return driver

    @classmethod
    def silent(cls):
        """Return a driver whose readings do not complete in time."""
        driver = cls()
        driver.now = None
        return driver

    def start(self, environ):
        self.taken += 1
        return FakeReading(self.now)

    def start_in_process(self, environ, last):
        return self.start(environ)

    def prepare(self, last):
        assert last == self.now

    def change(self, index, **fields):
        """Change fields of the GPU with this index in all later readings."""
        devices = [replace(d, **fields) if d.index == index else d for d in self.now.devices]
        self.now = replace(self.now, devices=tuple(devices))


class FakeCuda:
    """A fake CUDA driver of this process, with ``devices`` in the order of CUDA's ordinals.

    Args:
        nvml: A ``FakeDriver`` in which the contexts of this process appear, each with ``context_bytes``.
    """

    def __init__(self, devices=(), *, initialised=False, nvml=None, context_bytes=300 << 20):
        self.devices = tuple(devices)
        self.starts_elsewhere = True
        self._is_initialised = initialised
        self._nvml = nvml
        self._context_bytes = context_bytes
        self.contexts = []

    def initialise(self):
        self._is_initialised = True

    def gpus_elsewhere(self, environ, built_for):
        if not self.starts_elsewhere or built_for > (13, 0):
            return ()
        named = environ["CUDA_VISIBLE_DEVICES"].split(",")
        found = [device for device in self.devices if {device.uuid, str(device.index)} & set(named)]
        return tuple(CudaProperties(device.name, device.memory_total_bytes, 7, 5, 68) for device in found)

    def visible_uuids(self):
        return tuple(device.uuid for device in self.devices) if self._is_initialised else None

    def attributes(self):
        return tuple(CudaAttributes(d.name, "7.5", d.pci_bus_id or "") for d in self.devices)

    def ordinals_in_use(self):
        return tuple(sorted(set(self.contexts)))

    def make_context(self, ordinal):
        if ordinal not in self.contexts:
            self.contexts.append(ordinal)
            self._show(ordinal, self._context_bytes)

    @contextmanager
    def primary_contexts(self, ordinals):
        for ordinal in ordinals:
            self._show(ordinal, self._context_bytes)
        yield
        for ordinal in ordinals:
            self._show(ordinal, 0)

    def begin_use(self, ordinals):
        for ordinal in ordinals:
            self.make_context(ordinal)

    def _show(self, ordinal, size):
        index, shown = self.devices[ordinal].index, self._nvml.now if self._nvml else None
        for device in shown.devices if shown else ():
            if device.index == index:
                others = tuple(p for p in device.compute_processes or () if p.pid != os.getpid())
                mine = (Process(os.getpid(), size),) if size else ()
                self._nvml.change(index, compute_processes=others + mine)


class FakeFramework(HookedFramework):
    """A framework with one hooked entry point, :meth:`take`."""

    NAME = "Fakeflow"
    peak = 0
    default_share = 0.9
    HAS_LOGICAL_GPUS = True

    def __init__(self, cuda, hooks=Hooks("1.0", ("take",))):  # noqa: B008  (a value)
        super().__init__(None, activation.guard)
        self._cuda = cuda
        self._hooks = hooks

    def find_hooks(self):  # type: ignore[override]  # each instance has its own
        return self._hooks

    def install_hooks(self, hooks):
        pass

    def peak_bytes(self):  # type: ignore[override]  # each instance has its own
        return self.peak

    def current_bytes(self):  # type: ignore[override]  # each instance has its own
        return self.peak

    def requested_bytes(self, failure):  # type: ignore[override]  # each instance has its own
        return self.peak + failure.asked_bytes

    def needed_bytes(self, *, growth):  # type: ignore[override]  # each instance has its own
        return self.peak

    @staticmethod
    def out_of_memory(error):
        # An argument of the error is the GPU's number, as the framework counts.
        return OutOfMemory(1 << 30, *error.args) if isinstance(error, MemoryError) else None

    def take(self, chosen=None, **said):
        """Create contexts as an operation of a script does. Return the assignment; ``None`` without GPUs.

        Args:
            said: Further fields of the :class:`autogpu.frameworks.model.DeviceRequest`.
        """
        assignment = None
        with self.guard():
            self.prepare()
            self._cuda.initialise()
            count = len(self._cuda.visible_uuids())
            if not count:
                self.on_usage(Usage((), ""))
                return None
            assignment = self.assign(DeviceRequest(count, chosen, **said))
            ordinals = assignment.ordinals
            if ordinals is None:
                ordinals = tuple(range(count)) if chosen is None else chosen
            self.on_usage(Usage(ordinals, "allocated as needed"))
            for ordinal in ordinals:
                self._cuda.make_context(ordinal)
        return assignment


class FirstGpusFramework(FakeFramework, CudaOrderFramework):
    """A framework like PyTorch: it counts the GPUs, and its C++ code uses ordinals without a call to autogpu."""

    NAME = "Firstflow"
    HAS_LOGICAL_GPUS = False

    def count(self, named=0):
        """Return the GPU count that the script gets. ``named`` is the GPU number that it uses; ``None`` if unknown."""
        with self.guard():
            places = () if named is None else (named,)
            self.prepare(DeviceRequest(0, places=places))
            self.allocation.hide_gpus_if_cpu_only()
            self._cuda.initialise()
            count = self.gpu_count
            if not count:
                self.on_usage(Usage((), ""))
                return 0
            assigned = self.assign(DeviceRequest(count, places=places)).ordinals
            self.on_usage(Usage((named or 0,) if assigned is None else assigned, "allocated as needed"))
        return count

    def use(self, *ordinals):
        for ordinal in ordinals:
            self._cuda.make_context(ordinal)
