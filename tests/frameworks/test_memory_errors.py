"""Out-of-memory errors of the frameworks: recognised by class and text, with size and GPU read from the text."""

import pytest

from autogpu.frameworks import FRAMEWORKS, load
from autogpu.frameworks.model import OutOfMemory

GIB = 1 << 30
TORCH, JAX = "torch.OutOfMemoryError", "jax.errors.JaxRuntimeError"
TF = "tensorflow.python.framework.errors_impl"
AT = "/job:localhost/replica:0/task:0/device:"
TWO_GIB = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1 has a total capacity of "
CAUGHT = (
    "Caught OutOfMemoryError in {}.\nOriginal Traceback (most recent call last):\ntorch.OutOfMemoryError: " + TWO_GIB
)

# Framework, exception class, expected result and message, keyed by case. The messages are those of the releases.
ERRORS = {
    "torch-2.15": (
        *("torch", TORCH, OutOfMemory(2 * GIB, 1, int(7.5 * GIB))),
        TWO_GIB + "24.00 GiB of which 7.75 GiB is free. Process 42 has 9.00 GiB memory in use. Including non-PyTorch "
        "memory, this process has 7.25 GiB memory in use. 7.50 GiB allowed; Of the allocated memory 7.00 GiB is "
        "allocated by PyTorch",
    ),
    "torch-1.9": (
        *("torch", "builtins.RuntimeError", OutOfMemory(20 << 20, 2)),
        "CUDA out of memory. Tried to allocate 20.00 MiB (GPU 2; 10.76 GiB total capacity; 9.71 GiB already "
        "allocated; 5.56 MiB free; 9.82 GiB reserved in total by PyTorch)",
    ),
    "torch-in-a-thread": ("torch", TORCH, OutOfMemory(2 * GIB, 1), CAUGHT.format("replica 1 on device 1")),
    "torch-error-of-another-process": ("", TORCH, None, CAUGHT.format("DataLoader worker process 0")),
    "torch-context-creation": (
        "torch",
        "torch.AcceleratorError",
        OutOfMemory(),
        "CUDA error: out of memory\nCUDA kernel errors",
    ),
    "jax-0.12": (
        *("jax", JAX, OutOfMemory(GIB, 1)),
        "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 1.00GiB with allocator GPU_1_bfc on device 1.",
    ),
    "jax-0.4": (
        *("jax", "jaxlib.xla_extension.XlaRuntimeError", OutOfMemory(268435456)),
        "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 268435456 bytes.",
    ),
    "tensorflow-2.21": (
        *("tensorflow", f"{TF}.ResourceExhaustedError", OutOfMemory(GIB, 1)),
        f"OOM when allocating tensor with shape[256,1024,1024] and type float on {AT}GPU:1 by allocator GPU_1_bfc",
    ),
    "tensorflow-1.15": (
        *("tensorflow", "tensorflow_core.python.ResourceExhaustedError", OutOfMemory(2 << 20)),
        f"OOM when allocating tensor with shape[1024,1024] and type bfloat16 on {AT}GPU:0 by allocator GPU_0_bfc",
    ),
    "tensorflow-xla": (
        *("tensorflow", f"{TF}.ResourceExhaustedError", OutOfMemory(4096)),
        "Out of memory while trying to allocate 4096 bytes. [Op:__inference_f_3]",
    ),
    "tensorflow-copy": (
        *("tensorflow", f"{TF}.InternalError", OutOfMemory(0, 1)),
        f"Failed copying input tensor from {AT}CPU:0 to {AT}GPU:1 in order to run _EagerConst: Dst tensor is not "
        "initialized.",
    ),
    "tensorflow-on-the-cpu": (
        *("", f"{TF}.ResourceExhaustedError", None),
        f"OOM when allocating tensor with shape[9] and type float on {AT}CPU:0 by allocator cpu",
    ),
    "other-error-of-jax": ("", JAX, None, "INTERNAL: no"),
    "other-error-of-torch": ("", "builtins.RuntimeError", None, "CUDA error: an illegal memory access was encountered"),
    "host-memory-error": ("", "builtins.MemoryError", None, "out of memory"),
}


@pytest.mark.parametrize(("owner", "kind", "expected", "text"), ERRORS.values(), ids=ERRORS)
def test_out_of_memory_error_is_recognised_only_by_its_own_framework(owner, kind, expected, text):
    module, _, name = kind.rpartition(".")
    error = type(name, (RuntimeError,), {"__module__": module})(text)
    found = {name: load(name).out_of_memory(error) for name in FRAMEWORKS}
    assert {name: each for name, each in found.items() if each} == ({owner: expected} if owner else {})
