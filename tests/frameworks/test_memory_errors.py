"""Each framework's own error is told from others, by class and text, and what it says is read."""

from __future__ import annotations

import pytest

from autogpu.frameworks import FRAMEWORKS, load
from autogpu.frameworks.base import OutOfMemory

GIB = 1 << 30


def error(module: str, name: str, text: str, base=RuntimeError) -> BaseException:
    return type(name, (base,), {"__module__": module})(text)


TF = "tensorflow.python.framework.errors_impl"
AT = "/job:localhost/replica:0/task:0/device:"

# By the name of the framework whose error it is; the texts are those of the releases.
ERRORS = {
    "torch-2.15": (
        "torch",
        error(
            *("torch", "OutOfMemoryError"),
            "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1 has a total capacity of 24.00 GiB of which 7.75 GiB "
            "is free. Process 42 has 9.00 GiB memory in use. Including non-PyTorch memory, this process has 7.25 GiB "
            "memory in use. 7.50 GiB allowed; Of the allocated memory 7.00 GiB is allocated by PyTorch",
        ),
        OutOfMemory(2 * GIB, 1, int(7.5 * GIB)),
    ),
    "torch-1.9": (
        "torch",
        RuntimeError(
            "CUDA out of memory. Tried to allocate 20.00 MiB (GPU 2; 10.76 GiB total capacity; 9.71 GiB already "
            "allocated; 5.56 MiB free; 9.82 GiB reserved in total by PyTorch)"
        ),
        OutOfMemory(20 << 20, 2),
    ),
    "torch-in-another-thread": (
        "torch",
        error(
            *("torch", "OutOfMemoryError"),
            "Caught OutOfMemoryError in replica 1 on device 1.\nOriginal Traceback (most recent call last):\n"
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1 has a total capacity of",
        ),
        OutOfMemory(2 * GIB, 1),
    ),
    "torch-in-another-process": (
        "",
        error(
            *("torch", "OutOfMemoryError"),
            "Caught OutOfMemoryError in DataLoader worker process 0.\nOriginal Traceback (most recent call last):\n"
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1 has a total capacity of",
        ),
        None,
    ),
    "torch-context": (
        "torch",
        error("torch", "AcceleratorError", "CUDA error: out of memory\nCUDA kernel errors might be"),
        OutOfMemory(),
    ),
    "jax-0.12": (
        "jax",
        error(
            *("jax.errors", "JaxRuntimeError"),
            "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 1.00GiB with allocator GPU_1_bfc on device 1.",
        ),
        OutOfMemory(GIB, 1),
    ),
    "jax-0.4": (
        "jax",
        error(
            *("jaxlib.xla_extension", "XlaRuntimeError"),
            "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 268435456 bytes.",
        ),
        OutOfMemory(268435456),
    ),
    "tensorflow-2.21": (
        "tensorflow",
        error(
            *(TF, "ResourceExhaustedError"),
            f"OOM when allocating tensor with shape[256,1024,1024] and type float on {AT}GPU:1 by allocator GPU_1_bfc",
        ),
        OutOfMemory(GIB, 1),
    ),
    "tensorflow-1.15": (
        "tensorflow",
        error(
            *("tensorflow_core.python.framework.errors_impl", "ResourceExhaustedError"),
            f"OOM when allocating tensor with shape[1024,1024] and type bfloat16 on {AT}GPU:0 by allocator GPU_0_bfc",
        ),
        OutOfMemory(2 << 20),
    ),
    "tensorflow-xla": (
        "tensorflow",
        error(TF, "ResourceExhaustedError", "Out of memory while trying to allocate 4096 bytes. [Op:__inference_f_3]"),
        OutOfMemory(4096),
    ),
    "tensorflow-copy": (
        "tensorflow",
        error(
            *(TF, "InternalError"),
            "Failed copying input tensor from /job:localhost/replica:0/task:0/device:CPU:0 to /job:localhost/replica:0/"
            "task:0/device:GPU:1 in order to run _EagerConst: Dst tensor is not initialized.",
        ),
        OutOfMemory(0, 1),
    ),
    "tensorflow-on-the-cpu": (
        "",
        error(
            *(TF, "ResourceExhaustedError"),
            f"OOM when allocating tensor with shape[9] and type float on {AT}CPU:0 by allocator cpu",
        ),
        None,
    ),
    "another-error-of-jax": ("", error("jax.errors", "JaxRuntimeError", "INTERNAL: no"), None),
    "another-error-of-torch": ("", RuntimeError("CUDA error: an illegal memory access was encountered"), None),
    "of-the-host": ("", MemoryError("out of memory"), None),
}


@pytest.mark.parametrize(("owner", "raised", "expected"), ERRORS.values(), ids=ERRORS)
def test_an_error_is_known_to_its_own_framework_alone(owner, raised, expected):
    found = {name: load(name).out_of_memory(raised) for name in FRAMEWORKS}
    assert {name: each for name, each in found.items() if each} == ({owner: expected} if owner else {})
