import subprocess
import sys

import jax

child = "import jax; print(jax.numpy.ones(3).devices())"
print(jax.__name__, subprocess.run([sys.executable, "-c", child], stdout=subprocess.PIPE, check=True).stdout)
