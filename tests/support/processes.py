"""A process on its way to GPUs, with a driver and a framework on plain values."""

from __future__ import annotations

from pathlib import Path

from autogpu import activation, engines, policy
from autogpu.allocation import Allocation
from autogpu.allocator import Allocator
from autogpu.lease import find_folder, snapshot
from autogpu.reporting.text import MIB
from autogpu.variables import CUDA_VISIBLE_DEVICES, LEASE_DIR
from tests.support.fakes import FakeCuda, FakeDriver, FakeFramework


class Process:
    """A process that imports the fake framework, on these GPUs and with this environment."""

    def __init__(self, folder, *devices, driver=None, hooks=None, cuda=None, contexts=None, **environ):
        self.environ = {LEASE_DIR: str(folder), "HOME": str(folder), **environ}
        self.driver = driver or FakeDriver(*devices)
        # As CUDA lists them when the pool has been written idlest first.
        in_order = sorted(devices, key=lambda device: (bool(device.compute_processes), -device.index))
        self.cuda = cuda or FakeCuda(in_order, nvml=self.driver, **(contexts or {}))
        self.framework = FakeFramework(self.cuda, **({"hooks": hooks} if hooks else {}))
        self.lines = []
        self.on_line = lambda line: None
        self.reading = self.driver.start(self.environ)
        self.allocation = Allocation(
            policy.resolve(self.environ, script=None, working_directory=Path(folder), system_file=folder / "none"),
            self.environ,
            activation.guard,
            grant=engines.granted_here(self.environ),
            started_with=environ.get(CUDA_VISIBLE_DEVICES),
            first_reading=self.reading,
            reader=self.driver,
            cuda=self.cuda,
            say=self.say,
        )
        self.allocator = Allocator(self.allocation, self.framework, self.cuda)

    def say(self, line):
        self.lines.append(line)
        self.on_line(line)

    def imports(self):
        with activation.guard():
            self.allocator.imported()
        return self

    @property
    def holders(self):
        return snapshot(find_folder(self.environ)).holders

    @property
    def claims(self):
        """In MiB by GPU index, as the folder says."""
        (holder,) = self.holders
        indices = {device.uuid: device.index for device in self.driver.now.devices}
        return {indices[uuid]: size // MIB for uuid, size in holder.claims.items()}
