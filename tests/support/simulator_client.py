"""Programs that ask the simulated GPU server as any program asks: through ctypes and nvidia-ml-py."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Iterator

import pytest

from tests.gpusim import Gpu, Server
from tests.support import environments

MIB, GIB = 2**20, 2**30
PYTHON = sys.executable

CUDA = """
import ctypes, json, os, sys
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

def say(*values):
    print(json.dumps(values), flush=True)
"""
NVML = """
import itertools, json, os, sys, time
import pynvml as nvml

def say(*values):
    print(json.dumps(values), flush=True)

def ask(function, *arguments):
    try:
        return getattr(nvml, function)(*arguments)
    except nvml.NVMLError as error:
        return type(error).__name__
"""
# Takes memory on a GPU, says so, and keeps it until a line comes in.
HOLDER = CUDA + "cuda.cuInit(0); say(context({device}), allocate({size})[0]); sys.stdin.readline()"


def lines_of(done: subprocess.CompletedProcess[str]) -> list[list]:
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def run_cuda(server: Server, program: str, **environ: str) -> list[list]:
    return lines_of(server.run([PYTHON, "-c", CUDA + textwrap.dedent(program)], environ=environ))


def hold(server: Server, device: int, size: int, **environ: str) -> subprocess.Popen:
    program = HOLDER.format(device=device, size=size)
    holder = server.popen([PYTHON, "-c", program], environ=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    said = json.loads(holder.stdout.readline())
    # pytest explains bare assertions in files of tests only.
    assert said == [0, 0], said
    return holder


# Fixtures. A file of tests takes those it needs by assignment: `pair = simulator_client.pair`.


@pytest.fixture(scope="session")
def nvml_python() -> Path:
    base = Path(getattr(sys, "_base_executable", None) or sys.executable)
    return environments.environment(base, ["nvidia-ml-py"], with_autogpu=False)


@pytest.fixture
def run_nvml(nvml_python: Path):
    def run(server: Server, program: str) -> list[list]:
        return lines_of(server.run([str(nvml_python), "-c", NVML + textwrap.dedent(program)]))

    return run


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Server]:
    with Server([Gpu(), Gpu(name="NVIDIA A100", memory="40GiB")], folder=tmp_path) as server:
        yield server
