"""Client programs of the simulated GPU server. They use ctypes and nvidia-ml-py, as other programs do."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any, Mapping, Sequence

from tests.gpusim import Server
from tests.support.framework_machines import GIB, MIB, Running  # noqa: F401  (sizes, for tests)

PYTHON = sys.executable
# Makes CUDA number the GPUs in the order of autogpu and nvidia-smi.
PCI = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}

SAY = """
import json, os, sys, time

def say(*values):
    print(json.dumps(values), flush=True)
"""
CUDA = f"""{SAY}
import ctypes
cuda = ctypes.CDLL("libcuda.so.1")

def call(name, *arguments):
    return getattr(cuda, name)(*arguments)

def count():
    value = ctypes.c_int(-1)
    return call("cuDeviceGetCount", ctypes.byref(value)) or value.value

def uuid(device, function="cuDeviceGetUuid"):
    raw = (ctypes.c_ubyte * 16)()
    assert call(function, raw, device) == 0
    text = bytes(raw).hex()
    return "GPU-" + "-".join([text[:8], text[8:12], text[12:16], text[16:20], text[20:]])

def context(device):
    made = ctypes.c_void_p()
    return call("cuDevicePrimaryCtxRetain", ctypes.byref(made), device) or call("cuCtxSetCurrent", made)

def allocate(size):
    address = ctypes.c_uint64()
    error = call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
    return error, address
"""
NVML = f"""{SAY}
import pynvml as nvml

def ask(function, *arguments):
    try:
        return getattr(nvml, function)(*arguments)
    except nvml.NVMLError as error:
        return type(error).__name__
"""
# Allocates memory on a GPU, prints the results, and keeps the memory until a line of input.
HOLDER = CUDA + "cuda.cuInit(0); say(context({device}), allocate({size})[0]); sys.stdin.readline()"

# Prints the UUIDs that CUDA shows in each environment from stdin. A fork can stand in for a new process, because its
# parent has not used CUDA.
SEEN = """
for environ in json.load(sys.stdin):
    if os.fork():
        os.wait()
        continue
    os.environ.update(environ)
    error = cuda.cuInit(0)
    say(*[uuid(i, "cuDeviceGetUuid_v2") for i in range(count())] if error == 0 else [error])
    os._exit(0)
"""


def device_files(folder: Path, *numbers: int) -> str:
    """Create a folder with the device files of these GPUs. Leave out denied GPUs: root could open any existing file."""
    made = folder / "dev"
    made.mkdir()
    for number in numbers:
        (made / f"nvidia{number}").touch()
    return str(made)


def lines_of(done: subprocess.CompletedProcess[str]) -> list[list[Any]]:
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def run_cuda(server: Server, program: str, **environ: str) -> list[list[Any]]:
    return lines_of(server.run([PYTHON, "-c", CUDA + textwrap.dedent(program)], environ=environ))


def run_nvml(server: Server, program: str) -> list[list[Any]]:
    return lines_of(server.run([PYTHON, "-c", NVML + textwrap.dedent(program)]))


def seen_by_cuda(server: Server, environs: Sequence[Mapping[str, str]]) -> list[list[str]]:
    no_device = [100]
    done = server.run([PYTHON, "-c", CUDA + SEEN], input=json.dumps(environs))
    return [[] if said == no_device else said for said in lines_of(done)]


class Program(Running):
    """A running client program of the simulated server."""

    def __init__(self, server: Server, text: str, **environ: str) -> None:
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        super().__init__(server, server.popen([PYTHON, "-c", textwrap.dedent(text)], environ=environ, **pipes))

    def said(self) -> list[Any]:
        return json.loads(self.line())


def hold(server: Server, device: int, size: int, **environ: str) -> Program:
    """Start a program that holds ``size`` bytes of a GPU's memory until :meth:`Program.go_on`."""
    holder = Program(server, HOLDER.format(device=device, size=size), **environ)
    said = holder.said()
    assert said == [0, 0], said
    return holder
