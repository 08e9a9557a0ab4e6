"""The environment variables that autogpu knows, apart from those of the policy's keys. The one place for each name.

The start-up hook imports nothing of the package and repeats some of them.
"""

from __future__ import annotations

CUDA_VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"
CUDA_DEVICE_ORDER = "CUDA_DEVICE_ORDER"
PCI_ORDER = "PCI_BUS_ID"  # its value by which numbers are those of `nvidia-smi`, instead of fastest first

PREFIX = "AUTOGPU_"
SWITCH = "AUTOGPU"  # "0" switches autogpu off for one process
POLICY_FILE = PREFIX + "POLICY"  # the project's policy file, named outright
LEASE_DIR = PREFIX + "LEASE_DIR"  # the folder of the host's leases
LEASE = PREFIX + "LEASE"  # the lease of this process, for its children
WORKER = PREFIX + "WORKER"  # which of several workers this process is, that a program started by one call
LIBRARY_COUNT = PREFIX + "LIBRARY_COUNT"  # the number of GPUs that a library was given, for ranks that it starts

# A process passes these to autogpu in its children: the value of CUDA_VISIBLE_DEVICES that CUDA reads, the value
# without autogpu, and the value that the script finds, if it differs from the one without autogpu.
ORIGINAL_PREFIX = PREFIX + "ORIG_"
WRITTEN_VISIBLE_DEVICES = ORIGINAL_PREFIX + "WRITTEN"
ORIGINAL_VISIBLE_DEVICES = ORIGINAL_PREFIX + "CUDA_VISIBLE_DEVICES"
SHOWN_VISIBLE_DEVICES = ORIGINAL_PREFIX + "SHOWN"
# CUDA_DEVICE_ORDER without autogpu ("" if it was not set), if the script finds another value; and the host.
ORIGINAL_DEVICE_ORDER = ORIGINAL_PREFIX + "CUDA_DEVICE_ORDER"
ORIGINAL_HOST = ORIGINAL_PREFIX + "HOST"

# With a key's name in capitals: the value that an option of `autogpu run` has, beside the key's own variable.
TYPED = PREFIX + "RUN_"

# These are not keys of the policy, and no mistakes.
INTERNAL = (POLICY_FILE, LEASE, LEASE_DIR, WORKER, LIBRARY_COUNT)
INTERNAL_PREFIXES = (ORIGINAL_PREFIX, PREFIX + "TEST_", TYPED)
