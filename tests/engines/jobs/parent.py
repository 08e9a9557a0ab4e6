"""Takes a little on its GPUs, and then runs a command to its end."""

import subprocess
import sys

from taking import take

take(0.1)
sys.exit(subprocess.call(sys.argv[1:]))
