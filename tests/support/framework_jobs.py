"""Small jobs, the same for PyTorch and JAX. They take a GPU and keep it, or allocate until an allocation fails."""

from __future__ import annotations

FRAMEWORKS = ("torch", "jax")


def held(takes: str, says: str) -> str:
    """Return a script that takes GPUs, prints the expression ``says``, and keeps the GPUs until a line of input."""
    return f"import sys\n{takes}\nprint('ready', {says}, flush=True)\nsys.stdin.readline()\n"


# Takes a GPU, prints its name and the number of visible GPUs, and keeps it until a line of input.
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

# Prints a line after the import of the framework, and takes its GPU after a line of input.
AT_ONCE = {
    name: f"import sys, {name}\nprint('imported', flush=True)\nsys.stdin.readline()\n{script}"
    for name, script in HOLD.items()
}

# The lines that `HOLD` prints on one GPU of four, on the only GPU, and on the CPU.
READY = {"torch": "ready cuda:0 4", "jax": "ready cuda:0 1"}
READY_ON_THE_ONLY = "ready cuda:0 1"
ON_CPU = {"torch": "ready cpu 0", "jax": "ready cpu:0 1"}

# Allocates 256 MiB repeatedly until an error; prints the error's name and the number of successful allocations.
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

# Finds how much can be allocated on each of the first `count` GPUs. For JAX, which waits ten seconds before an
# allocation fails, the script prints JAX's own limit instead.
ALLOWED = {
    "torch": FILL["torch"].replace('device="cuda"', 'device=f"cuda:{{len(kept) % {count}}}"'),
    "jax": """
import jax
assert jax.local_device_count() == {count}
print(*(device.memory_stats()["bytes_limit"] for device in jax.local_devices()))
""",
}

# Uses `count` GPUs and prints their number; fails if there are fewer.
USE_SEVERAL = {
    "torch": held("import torch\nx = [torch.ones(3, device=f'cuda:{{i}}') for i in range({count})]", "len(x)"),
    "jax": held(
        "import jax\nx = [jax.device_put(1.0, device) for device in jax.devices()]\n"
        "assert len(x) == {count}, jax.devices()",
        "len(x)",
    ),
}
