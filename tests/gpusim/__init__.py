"""A simulated GPU server: unmodified TensorFlow, PyTorch, JAX and NVML tools find the GPUs of a fleet.

``gpusim.h`` lists what is simulated, and what tests on this server can't prove. From a shell:
``python -m tests.gpusim --help``.
"""

from tests.gpusim.build import BuildError
from tests.gpusim.fleet import Fleet, FleetError, Gpu, Instance, read_fleet
from tests.gpusim.server import Call, Server

__all__ = ["BuildError", "Call", "Fleet", "FleetError", "Gpu", "Instance", "Server", "read_fleet"]
