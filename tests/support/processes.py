"""A process that requests GPUs, with a fake driver and a fake framework."""

import ast
import os
import signal
from pathlib import Path

from autogpu import activation, policy
from autogpu.allocation import Allocation
from autogpu.engines.facts import granted_here
from autogpu.frozen import replace
from autogpu.lease import Processes, find_folder, snapshot
from autogpu.selection.jobs import jobs_of
from autogpu.selection.visible_devices import initial_visibility
from autogpu.text import MIB
from autogpu.variables import CUDA_VISIBLE_DEVICES, LEASE_DIR
from tests.support.fakes import FakeCuda, FakeDriver, FakeFramework


class Process:
    """A process with these GPUs and this environment, which imports a fake framework.

    Args:
        kind: Class of the framework.
        counted: The GPUs in the order of CUDA's ordinals; by default, the order in which autogpu lists the pool.
        contexts: Further arguments of the default :class:`FakeCuda`, such as ``context_bytes``.
    """

    def __init__(self, folder, *devices, driver=None, cuda=None, counted=None, contexts=None, say=None, **options):
        kind, hooks = options.pop("kind", FakeFramework), options.pop("hooks", None)
        environ = options
        self.environ = {LEASE_DIR: str(folder), "HOME": str(folder), **environ}
        self.driver = driver or FakeDriver(*devices)
        if cuda is None and counted is None:
            # The order in which autogpu lists the pool: idlest first.
            in_order = sorted(devices, key=lambda device: (bool(device.compute_processes), -device.index))
            cuda = FakeCuda(in_order, nvml=self.driver, **(contexts or {}))
        self.cuda = cuda or FakeCuda(counted, nvml=self.driver)
        self.framework = kind(self.cuda, **({"hooks": hooks} if hooks else {}))
        self.for_cuda = self.environ.get(CUDA_VISIBLE_DEVICES)
        self.lines = []
        self.on_line = lambda line: None
        self.reading = self.driver.start(self.environ)
        self.allocation = Allocation(
            policy.resolve(self.environ, script=None, working_directory=Path(folder), system_file=folder / "none"),
            self.environ,
            activation.guard,
            grant=granted_here(self.environ),
            initial=initial_visibility(self.environ, self.environ.get(CUDA_VISIBLE_DEVICES)),
            write_for_cuda=self.write_for_cuda,
            first_reading=self.reading,
            reader=self.driver,
            cuda=self.cuda,
            # Treat all jobs as ancestors of the process. The tests start the jobs beside it.
            above=lambda: [(holder.pid, holder.start_time) for holder in self.holders],
            say=say or self.say,
        )
        self.framework.join(self.allocation)

    def write_for_cuda(self, value):
        self.for_cuda = value

    def say(self, line):
        self.lines.append(line)
        self.on_line(line)

    def imports(self):
        with activation.guard():
            self.framework.imported()
        return self

    def imports_another(self, name="Otherflow", kind=FakeFramework, cuda=None, **options):
        framework = kind(cuda or self.cuda, **options)
        framework.NAME = name
        framework.join(self.allocation)
        framework.imported()
        return framework

    @property
    def listed(self):
        """Return the GPUs visible to CUDA, in order and by their labels: ``"2 0:1"``."""
        return self._numbers(self.for_cuda.split(",")) if self.for_cuda else ""

    @property
    def held(self):
        """Return the labels of the claimed GPUs, in ascending order."""
        return " ".join(sorted(self._numbers(self.allocation.lease.claims if self.allocation.lease else ()).split()))

    def _numbers(self, uuids):
        labels = {device.uuid: device.label for device in self.driver.now.devices}
        return " ".join(labels[uuid] for uuid in uuids)

    @property
    def holders(self):
        return snapshot(find_folder(self.environ)).holders

    @property
    def claims(self):
        """Return the claims in the process's only lease file, in MiB keyed by GPU index."""
        (holder,) = (holder for holder in self.holders if holder.is_mine)
        indices = {device.uuid: device.index for device in self.driver.now.devices}
        return {indices[uuid]: size // MIB for uuid, size in holder.claims.items()}

    @property
    def seen(self):
        """Return the claims that other processes compute from the lease and the driver, in MiB keyed by GPU index."""
        (holder,) = (replace(holder, is_mine=False) for holder in self.holders if holder.is_mine)
        (job,) = jobs_of([holder], Processes({holder.name: (os.getpid(),)}), self.driver.now.devices, 0.0)
        indices = {device.uuid: device.index for device in self.driver.now.devices}
        return {indices[uuid]: claim.bytes // MIB for uuid, claim in job.claims.items()}


def in_a_fork(work):
    """Call ``work`` in a forked child and return its result, which must be a Python literal."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        try:
            signal.alarm(60)
            os.write(writer, repr(work()).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as stream:
        told = stream.read()
    os.waitpid(child, 0)
    return ast.literal_eval(told)
