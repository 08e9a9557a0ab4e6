"""A simulated GPU server: unmodified TensorFlow, PyTorch, JAX and NVML tools believe in the GPUs of a fleet.

``gpusim.h`` says what is simulated and what it can't tell. From a shell: ``python -m tests.gpusim --help``.
"""

from tests.gpusim.build import BuildError
from tests.gpusim.fleet import Fleet, FleetError, Gpu, Instance, read_fleet
from tests.gpusim.server import Call, Server

__all__ = ["BuildError", "Call", "Fleet", "FleetError", "Gpu", "Instance", "Server", "read_fleet"]
