"""The same small jobs for PyTorch and for JAX: take a GPU and keep it, or allocate until the framework refuses."""

from __future__ import annotations

FRAMEWORKS = ("torch", "jax")


def held(takes: str, says: str) -> str:
    """A script that takes GPUs, says something of them, and keeps them until there is a line of input."""
    return f"import sys\n{takes}\nprint('ready', {says}, flush=True)\nsys.stdin.readline()\n"


# Takes a GPU, says which and how many it sees, and keeps it until there is a line of input.
HOLD = {
    "torch": held(
        "import torch\nx = torch.ones(256, 256, device='cuda' if torch.cuda.is_available() else 'cpu')",
        "x.device, torch.cuda.device_count()",
    ),
    "jax": held("import jax\nx = jax.numpy.ones((256, 256))", "*x.devices(), jax.local_device_count()"),
    "tensorflow": held(
        "import tensorflow as tf\nx = tf.random.uniform((256, 256))",
        "x.device[-5:], len(tf.config.list_logical_devices('GPU'))",
    ),
}

# Says it once the framework is imported, and goes on when there is a line of input.
AT_ONCE = {
    name: f"import sys, {name}\nprint('imported', flush=True)\nsys.stdin.readline()\n{script}"
    for name, script in HOLD.items()
}

# What it says on one GPU of four, and on the CPU.
READY = {"torch": "ready cuda:0 4", "jax": "ready cuda:0 1"}
READY_ON_THE_ONLY = "ready cuda:0 1"
ON_CPU = {"torch": "ready cpu 0", "jax": "ready cpu:0 1"}

# Allocates 256 MiB again and again; says what was raised at last, and how often it went well.
FILL = {
    "torch": """
import torch
kept = []
try:
    while len(kept) < 120:
        kept.append(torch.empty(256 << 20, dtype=torch.uint8, device="cuda"))
except torch.cuda.OutOfMemoryError as error:
    print(type(error).__name__, len(kept))
""",
    "jax": """
import jax
kept = []
try:
    while len(kept) < 120:
        kept.append(jax.numpy.zeros(256 << 20, dtype="uint8").block_until_ready())
except Exception as error:
    assert "RESOURCE_EXHAUSTED" in str(error), error
    print("OutOfMemoryError", len(kept))
""",
}

# Finds how much it may allocate on each of its first GPUs. JAX, which waits ten seconds before it refuses, is asked.
ALLOWED = {
    "torch": FILL["torch"].replace('device="cuda"', 'device=f"cuda:{{len(kept) % {count}}}"'),
    "jax": """
import jax
assert jax.local_device_count() == {count}
print(*(device.memory_stats()["bytes_limit"] for device in jax.local_devices()))
""",
}

# Uses as many GPUs as it says, where there are so many.
USE_SEVERAL = {
    "torch": held("import torch\nx = [torch.ones(3, device=f'cuda:{{i}}') for i in range({count})]", "len(x)"),
    "jax": held(
        "import jax\nx = [jax.device_put(1.0, device) for device in jax.devices()]\n"
        "assert len(x) == {count}, jax.devices()",
        "len(x)",
    ),
}
