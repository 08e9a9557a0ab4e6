"""A script that starts ranks like ``horovodrun --gloo``. Usage: ``on_horovod.py COUNT COMMAND...``.

It calls Horovod's launcher directly, because ``horovodrun`` needs Horovod's extension, which would have to be built.
"""

import os
import sys

from horovod.runner import gloo_run
from horovod.runner.common.util.settings import Settings

if __name__ == "__main__":
    count, *command = sys.argv[1:]
    settings = Settings(num_proc=int(count), hosts=f"localhost:{count}", verbose=0)
    start = gloo_run._exec_command_fn(settings)
    gloo_run.launch_gloo(command, start, settings, {"lo"}, dict(os.environ), "127.0.0.1")
