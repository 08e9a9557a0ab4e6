"""A simulated GPU server for tests: start programs on it, move its load, read what they asked the driver."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Mapping, Sequence

from tests.gpusim.build import DEVICE_NODES, LIBRARY, build
from tests.gpusim.fleet import Device, Fleet, Gpu, Size

READER = "import ctypes, sys; read = ctypes.CDLL(sys.argv[1]).gpusim_used_bytes; " + (
    "read.restype = ctypes.c_uint64; print(read(int(sys.argv[2])))"
)


@dataclass(frozen=True)
class Call:
    """One thing that a process asked of the driver.

    Attributes:
        call: ``cuInit``, ``context``, ``context_end``, ``allocate``, ``free``, ``refused`` (a context or an
            allocation that was not granted), ``nvmlInit``, ``p2p`` and ``ancestor`` (NVML was asked what
            connects a GPU), or ``missing`` and the name of a function that the simulation doesn't have.
        gpu: In PCI order; ``None`` where the call concerns none.
        instance: Of that GPU, where it is in MIG mode: the index of the instance.
        bytes: What was taken or given back; ``None`` where the call concerns no GPU.
        time_s: Comparable with ``time.monotonic()``.
    """

    pid: int
    call: str
    gpu: int | None
    bytes: int | None
    time_s: float
    instance: int | None = None


class Server:
    """A machine with simulated GPUs, for as long as the ``with`` lasts.

    Args:
        gpus: In PCI order.
        folder: Where the fleet, the ledger and the log are written; those of an earlier server are replaced.
        context: What a CUDA context costs each process on each GPU.
        driver: The driver's version.
        device_nodes: Whether the machine seems to have the files in ``/dev`` of NVIDIA's driver, as JAX wants it.
        preloaded: The libraries that ``imports.record_torch`` returned.
        faults: The other fields of ``Fleet``.

    Raises:
        BuildError: On entering, where the simulation can't be compiled.
        FleetError: The description is not possible.
    """

    def __init__(
        self,
        gpus: Sequence[Gpu],
        *,
        folder: Path,
        context: Size = "256MiB",
        driver: str = "580.95.05",
        device_nodes: bool = False,
        preloaded: Sequence[str] = (),
        **faults: Any,
    ) -> None:
        self._fleet = Fleet(gpus=tuple(gpus), context=context, driver=driver, **faults)
        self._folder = folder
        self._log = folder / "gpusim.log"
        self._has_device_nodes = device_nodes
        self._preloaded = preloaded
        self._own_environ: dict[str, str] = {}
        self._children: list[Any] = []

    def __enter__(self) -> Server:
        self._own_environ = lay_out(
            self._fleet, self._folder, self._log, device_nodes=self._has_device_nodes, preloaded=self._preloaded
        )
        return self

    def __exit__(self, *error: object) -> None:
        for child in self._children:
            child.kill()
            child.wait()
            for stream in (child.stdin, child.stdout, child.stderr):
                if stream is not None:
                    try:
                        stream.close()
                    except BrokenPipeError:
                        # What was still to be written to a child that is gone.
                        pass

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """The GPUs as they are now, with UUID and PCI address filled in."""
        return self._fleet.gpus

    @property
    def instances(self) -> tuple[Device, ...]:
        """The MIG instances of all GPUs as they are now, in PCI order."""
        return self._fleet.instances

    @property
    def environ(self) -> dict[str, str]:
        """What a child process needs on top of this process's environment."""
        return with_libraries_in_front(self._own_environ, os.environ)

    def environ_of_child(self, environ: Mapping[str, str] | None = None) -> dict[str, str]:
        """All of a child process's environment: this process's, ``environ`` on top, and what puts it on this server."""
        given = {**os.environ, **(environ or {})}
        return {**given, **with_libraries_in_front(self._own_environ, given)}

    def run(
        self, command: Sequence[str], *, environ: Mapping[str, str] | None = None, timeout: float = 120, **kwargs: Any
    ) -> subprocess.CompletedProcess[str]:
        """Run a program on this server to its end; its output is captured as text.

        Raises:
            subprocess.TimeoutExpired: It was not done in time, and was killed.
        """
        is_captured = not {"stdout", "stderr"} & set(kwargs)
        settings = {"capture_output": is_captured, "text": True, "check": False, **kwargs}
        return subprocess.run(list(command), env=self.environ_of_child(environ), timeout=timeout, **settings)

    def popen(
        self, command: Sequence[str], *, environ: Mapping[str, str] | None = None, **kwargs: Any
    ) -> subprocess.Popen[Any]:
        """Start a program on this server. It is killed, at the latest, when the server's ``with`` ends."""
        settings = {"text": True, **kwargs}
        child = subprocess.Popen(list(command), env=self.environ_of_child(environ), **settings)
        return self.adopt(child)

    def adopt(self, child: Any) -> Any:
        """Kill a process that was started elsewhere, at the latest, when the server's ``with`` ends."""
        self._children.append(child)
        return child

    def calls(self, pid: int | None = None, call: str | None = None) -> list[Call]:
        """What the driver was asked so far, oldest first; by one process, or of one kind, where given."""
        with self._log.open(encoding="utf-8") as lines:
            # A last line without its end is being written at this moment.
            every = [Call(**json.loads(line)) for line in lines if line.endswith("\n")]
        return [each for each in every if pid in (None, each.pid) and call in (None, each.call)]

    def used_bytes(self, gpu_index: int, instance: int | None = None) -> int:
        """What NVML would say now of a GPU in PCI order, if no fault keeps it from saying anything.

        Args:
            instance: By its index, one MIG instance of that GPU instead.
        """
        library = str(build() / LIBRARY)
        found = [each.number for each in self.instances if (each.card, each.index) == (gpu_index, instance)]
        command = [sys.executable, "-I", "-S", "-c", READER, library, str(*found or [gpu_index])]
        done = self.run(command, timeout=30)
        if done.returncode:
            raise RuntimeError(f"the ledger can't be read: {done.stderr}")
        return int(done.stdout)

    def contexts(self) -> dict[int, list[int]]:
        """By pid, the GPUs that each process ever made a context on, in that order."""
        made: dict[int, list[int]] = {}
        for each in self.calls(call="context"):
            gpus = made.setdefault(each.pid, [])
            if each.gpu is not None and each.gpu not in gpus:
                gpus.append(each.gpu)
        return made

    def change(self, gpu_index: int, *, instance: int | None = None, **fields: Any) -> None:
        """Give a GPU, or one MIG instance of it, other values; running processes see them at their next call."""
        gpus = list(self._fleet.gpus)
        if instance is not None:
            instances = list(gpus[gpu_index].instances)
            instances[instance] = dataclasses.replace(instances[instance], **fields)
            fields = {"mig": instances}
        gpus[gpu_index] = dataclasses.replace(gpus[gpu_index], **fields)
        self._fleet = dataclasses.replace(self._fleet, gpus=tuple(gpus))
        write_fleet(self._fleet, self._folder)


def lay_out(
    fleet: Fleet, folder: Path, log: Path, *, device_nodes: bool, preloaded: Sequence[str] = ()
) -> dict[str, str]:
    """Write what a simulated server consists of, and return the environment that puts a process on it."""
    libraries = build()
    ledger = folder / "gpusim.ledger"
    for file in (ledger, folder / "gpusim.ledger.roll", log):
        # New files and not emptied ones: what still runs on an earlier server keeps its own.
        file.unlink(missing_ok=True)
        file.touch()
        # Open to every user, whatever the umask: people share a server.
        file.chmod(0o666)
    # By their bare names, which the loader then has, and looks for in no RPATH.
    preloads = [*([str(libraries / DEVICE_NODES)] if device_nodes else []), *preloaded]
    return {
        "LD_LIBRARY_PATH": str(libraries),
        "GPUSIM_FLEET": str(write_fleet(fleet, folder)),
        "GPUSIM_STATE": str(ledger),
        "GPUSIM_LOG": str(log),
        **({"LD_PRELOAD": os.pathsep.join(preloads)} if preloads else {}),
    }


def write_fleet(fleet: Fleet, folder: Path) -> Path:
    """Write the fleet so that a reader sees the old one or the new one, never a part."""
    path = folder / "gpusim.fleet"
    new = folder / f"gpusim.fleet.{os.getpid()}"
    new.write_text(fleet.text(), encoding="utf-8")
    new.chmod(0o644)
    new.replace(path)
    return path


def with_libraries_in_front(server: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, str]:
    """A server's environment with the libraries that ``environ`` names behind its own."""
    lists = {
        name: os.pathsep.join(filter(None, [server[name], environ.get(name, "")]))
        for name in ("LD_LIBRARY_PATH", "LD_PRELOAD")
        if name in server
    }
    return {**server, **lists}
