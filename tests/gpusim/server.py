"""A simulated GPU server for tests, which can run programs, change its load, and return the logged driver calls."""

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
    """A logged call of the simulated driver.

    Attributes:
        call: ``cuInit``, ``context``, ``context_end``, ``allocate``, ``free``, ``refused`` (a context or an
            allocation that was not granted), ``nvmlInit``, ``p2p`` and ``ancestor`` (NVML's functions for
            connections between GPUs), or ``missing NAME`` for a function that the simulation lacks.
        gpu: Position of the GPU in PCI order; ``None`` if the call concerns no GPU.
        bytes: Memory taken or given back; ``None`` if the call concerns no GPU.
        time_s: Time of the call, comparable with ``time.monotonic()``.
        instance: Index of the MIG instance on the GPU; ``None`` if the call concerns no instance.
    """

    pid: int
    call: str
    gpu: int | None
    bytes: int | None
    time_s: float
    instance: int | None = None


class Server:
    """A machine with simulated GPUs, which exists during a ``with`` statement.

    Args:
        gpus: GPUs in PCI order.
        folder: Folder of the fleet, the ledger and the log. The files of an earlier server are replaced.
        context: Memory that a CUDA context takes on a GPU, for each process.
        driver: Version of the driver.
        device_nodes: True if programs must find the files of NVIDIA's driver in ``/dev``, which JAX requires.
        preloaded: The libraries that ``imports.record_torch`` returned.
        faults: Other fields of ``Fleet``.

    Raises:
        BuildError: The simulation can't be compiled. Raised by the ``with`` statement.
        FleetError: The description is invalid.
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
                        # The child ended before it had read all of its input.
                        pass

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """GPUs with their current values; UUID and PCI address are filled in."""
        return self._fleet.gpus

    @property
    def instances(self) -> tuple[Device, ...]:
        return self._fleet.instances

    @property
    def environ(self) -> dict[str, str]:
        """Variables that a child process needs in addition to this process's environment."""
        return with_libraries_in_front(self._own_environ, os.environ)

    def environ_of_child(self, environ: Mapping[str, str] | None = None) -> dict[str, str]:
        """Return a child's whole environment: this process's, overridden by ``environ`` and then by this server's."""
        given = {**os.environ, **(environ or {})}
        return {**given, **with_libraries_in_front(self._own_environ, given)}

    def run(
        self, command: Sequence[str], *, environ: Mapping[str, str] | None = None, timeout: float = 120, **kwargs: Any
    ) -> subprocess.CompletedProcess[str]:
        """Run a program on this server, and wait for its end. Capture its output, unless a stream is passed.

        Raises:
            subprocess.TimeoutExpired: The program did not end in time, and was killed.
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
        """Register a process that was started elsewhere. It is killed when the server's ``with`` ends."""
        self._children.append(child)
        return child

    def calls(self, pid: int | None = None, call: str | None = None) -> list[Call]:
        """Return the logged calls, oldest first. ``pid`` and ``call`` select the calls of one process or one kind."""
        with self._log.open(encoding="utf-8") as lines:
            # A last line without a newline is still being written.
            every = [Call(**json.loads(line)) for line in lines if line.endswith("\n")]
        return [each for each in every if pid in (None, each.pid) and call in (None, each.call)]

    def used_bytes(self, gpu_index: int, instance: int | None = None) -> int:
        """Return the used memory that NVML reports for a GPU, in bytes. Faults of the GPU are ignored.

        Args:
            gpu_index: Position of the GPU in PCI order.
            instance: Index of a MIG instance on the GPU, if only its memory is wanted.
        """
        library = str(build() / LIBRARY)
        found = [each.number for each in self.instances if (each.card, each.index) == (gpu_index, instance)]
        command = [sys.executable, "-I", "-S", "-c", READER, library, str(*found or [gpu_index])]
        done = self.run(command, timeout=30)
        if done.returncode:
            raise RuntimeError(f"the ledger can't be read: {done.stderr}")
        return int(done.stdout)

    def contexts(self) -> dict[int, list[int]]:
        """Return the GPUs on which each process has made a context, in the order of the contexts, keyed by pid."""
        made: dict[int, list[int]] = {}
        for each in self.calls(call="context"):
            gpus = made.setdefault(each.pid, [])
            if each.gpu is not None and each.gpu not in gpus:
                gpus.append(each.gpu)
        return made

    def change(self, gpu_index: int, *, instance: int | None = None, **fields: Any) -> None:
        """Change fields of a GPU or of one of its MIG instances. Running processes see them at their next call."""
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
    """Write the files of a simulated server, and return the environment variables that put a process on it."""
    libraries = build()
    ledger = folder / "gpusim.ledger"
    for file in (ledger, folder / "gpusim.ledger.roll", log):
        # Make new files and don't empty the old ones: programs of an earlier server still use those.
        file.unlink(missing_ok=True)
        file.touch()
        # Set the mode whatever the umask: users share a server, and all of them must be able to write.
        file.chmod(0o666)
    # Preload by bare names: the loader then has these names, and does not look for them in an RPATH.
    preloads = [*([str(libraries / DEVICE_NODES)] if device_nodes else []), *preloaded]
    return {
        "LD_LIBRARY_PATH": str(libraries),
        "GPUSIM_FLEET": str(write_fleet(fleet, folder)),
        "GPUSIM_STATE": str(ledger),
        "GPUSIM_LOG": str(log),
        **({"LD_PRELOAD": os.pathsep.join(preloads)} if preloads else {}),
    }


def write_fleet(fleet: Fleet, folder: Path) -> Path:
    """Write the fleet's file and return its path. A reader sees either the old or the new text, never a part."""
    path = folder / "gpusim.fleet"
    new = folder / f"gpusim.fleet.{os.getpid()}"
    new.write_text(fleet.text(), encoding="utf-8")
    new.chmod(0o644)
    new.replace(path)
    return path


def with_libraries_in_front(server: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, str]:
    """Return a server's environment variables, with the libraries of ``environ`` after the server's own."""
    lists = {
        name: os.pathsep.join(filter(None, [server[name], environ.get(name, "")]))
        for name in ("LD_LIBRARY_PATH", "LD_PRELOAD")
        if name in server
    }
    return {**server, **lists}
