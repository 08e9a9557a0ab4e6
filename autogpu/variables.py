"""The environment variables that autogpu knows, apart from those of the policy's keys. The one place for each name.

The start-up hook imports nothing of the package and repeats two of them.
"""

from __future__ import annotations

CUDA_VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"
CUDA_DEVICE_ORDER = "CUDA_DEVICE_ORDER"

# The value of the latter by which numbers are those of `nvidia-smi`, instead of fastest first.
PCI_ORDER = "PCI_BUS_ID"

PREFIX = "AUTOGPU_"

# "0" switches autogpu off for one process.
SWITCH = "AUTOGPU"

# The project's policy file, named outright.
POLICY_FILE = PREFIX + "POLICY"

# The folder of the host's leases.
LEASE_DIR = PREFIX + "LEASE_DIR"

# The lease of this process, for its children.
LEASE = PREFIX + "LEASE"

# Which of several workers this process is, that a program started by one call.
WORKER = PREFIX + "WORKER"

# What we wrote into CUDA_VISIBLE_DEVICES and what was there before, for an autogpu in a child.
WRITTEN_VISIBLE_DEVICES = PREFIX + "ORIG_WRITTEN"
ORIGINAL_VISIBLE_DEVICES = PREFIX + "ORIG_CUDA_VISIBLE_DEVICES"

# These are not keys of the policy, and no mistakes.
INTERNAL = (POLICY_FILE, LEASE, LEASE_DIR, WORKER)
INTERNAL_PREFIXES = (PREFIX + "ORIG_", PREFIX + "TEST_")
