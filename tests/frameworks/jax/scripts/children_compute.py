import subprocess
import sys

import jax

child = "import jax; print(jax.numpy.ones(3).devices())"
print(jax.numpy.ones(3).devices())
print(subprocess.run([sys.executable, "-c", child], stdout=subprocess.PIPE, text=True, check=True).stdout)
