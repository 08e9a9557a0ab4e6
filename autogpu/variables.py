"""Names of the environment variables that autogpu reads or writes, except those of the policy's keys.

The start-up hook imports nothing of the package and repeats some of these names.
"""

from __future__ import annotations

CUDA_VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"
CUDA_DEVICE_ORDER = "CUDA_DEVICE_ORDER"
PCI_ORDER = "PCI_BUS_ID"  # with this CUDA_DEVICE_ORDER, CUDA numbers GPUs as `nvidia-smi` does, not fastest first

RAY_WORKER = "RAY_RAYLET_PID"  # Ray sets it for a worker process before the first line of its Python runs

PREFIX = "AUTOGPU_"
SWITCH = "AUTOGPU"  # "0" switches autogpu off for one process
POLICY_FILE = PREFIX + "POLICY"  # the path of the project's policy file
LEASE_DIR = PREFIX + "LEASE_DIR"  # the folder of the host's leases
LEASE = PREFIX + "LEASE"  # the lease of this process, for its children
WORKER = PREFIX + "WORKER"  # number/count/job of a worker that a program started together with others
LIBRARY_COUNT = PREFIX + "LIBRARY_COUNT"  # the GPU count reported to a library such as Lightning, for its ranks
RAY_TASK = PREFIX + "RAY_TASK"  # the GPUs that Ray assigned to a task, for programs that the task starts

# A process passes these to autogpu in its children: the value of CUDA_VISIBLE_DEVICES that CUDA reads, the value
# without autogpu, and the value that the script finds, if it differs from the one without autogpu.
ORIGINAL_PREFIX = PREFIX + "ORIG_"
WRITTEN_VISIBLE_DEVICES = ORIGINAL_PREFIX + "WRITTEN"
ORIGINAL_VISIBLE_DEVICES = ORIGINAL_PREFIX + "CUDA_VISIBLE_DEVICES"
SHOWN_VISIBLE_DEVICES = ORIGINAL_PREFIX + "SHOWN"
# CUDA_DEVICE_ORDER as it would be without autogpu, or "" if it would not be set. Passed only if autogpu changed it.
ORIGINAL_DEVICE_ORDER = ORIGINAL_PREFIX + "CUDA_DEVICE_ORDER"
ORIGINAL_HOST = ORIGINAL_PREFIX + "HOST"  # the host of the process that passes these; they are invalid on other hosts

# Prefix of the variables by which `autogpu run` passes its options; a key's name in capitals follows.
TYPED = PREFIX + "RUN_"

# `autogpu run` sets it to the folder of its pynvml, for Pythons whose environment has no pynvml.
PYNVML_FOLDER = TYPED + "PYNVML_FOLDER"

# Variables with the prefix AUTOGPU_ that are neither keys of the policy nor mistakes.
INTERNAL = (POLICY_FILE, LEASE, LEASE_DIR, WORKER, LIBRARY_COUNT, RAY_TASK)
INTERNAL_PREFIXES = (ORIGINAL_PREFIX, PREFIX + "TEST_", TYPED)
