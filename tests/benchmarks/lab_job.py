"""One job of a day: does what it is told line by line, and prints one JSON object for each line.

``go``: choose by autogpu and make a CUDA context; ``step``: grow by one step; ``end``: be done. Started by
``test_lab_day_live.py`` with a JSON object as argument. A job that comes to its cap, or finds no room, ends itself.
"""

import json
import os
import sys

import contention_job
from contention_job import tell


def main(step_bytes):
    choose, cuda = contention_job.autogpu(None), contention_job.Cuda()
    tell(event="ready")
    used, cap = 0, None
    for line in sys.stdin:
        died = ""
        if line == "go\n":
            choice = choose(cuda)
            cap = choice.cap_bytes
            died = "" if choice.gpus and cuda.make_context(choice.ordinal) else "no context"
            choice.finish()
            tell(event="started", gpus=choice.gpus, cap_bytes=cap, died=died)
        elif line == "step\n":
            used += step_bytes
            if cap is not None and used > cap:
                died = "its cap"
            elif not cuda.allocate(step_bytes):
                died = "no room"
            tell(event="grown", died=died)
        if died or line == "end\n":
            break
    sys.stdout.flush()
    # The GPU is given back by the process's end alone, as by any script that simply ends.
    os._exit(0)


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
