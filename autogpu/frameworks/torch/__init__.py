"""PyTorch: the functions of its C++ that initialise CUDA, and what is set there.

``cuda`` and ``cuda:0`` are a thread's current device, and C++ never tells Python which GPU it uses. So the GPUs are
claimed before CUDA counts them, and CUDA finds the claimed one under the number that the program is about to use.
"""

from __future__ import annotations

from autogpu.frameworks.torch.hooks import find_hooks as find_hooks
from autogpu.frameworks.torch.hooks import install_hooks as install_hooks
from autogpu.frameworks.torch.memory import needed_bytes as needed_bytes
from autogpu.frameworks.torch.memory import out_of_memory as out_of_memory
from autogpu.frameworks.torch.memory import peak_bytes as peak_bytes

NAME = "PyTorch"
DEFAULT_SHARE = 1.0  # its allocator grows until the driver refuses
GROWTH_VARIABLES: dict[str, str] = {}
TAKES_FIRST_GPUS = True
HAS_LOGICAL_GPUS = False
WANTS_ORDER = True
