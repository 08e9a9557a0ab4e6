"""A job that allocates memory on its GPUs, reports, and stays until all jobs of its run have reported.

Usage: ``job.py FOLDER COUNT GIB [FRAMEWORK [RANK]]``. Each of the COUNT jobs writes its report to a file in FOLDER. The
job of rank RANK runs out of memory after it has allocated GIB.
"""

import json
import os
import sys
import time
from pathlib import Path

from taking import take

RANKS = ("SLURM_NODEID", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "HOROVOD_RANK")
MOST_S = 200

folder, count, gib, framework = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), sys.argv[4:5]
rank = [int(os.environ.get(name, 0)) for name in RANKS]
told = {"pid": os.getpid(), "rank": rank}
try:
    take(gib, *framework, more_gib=sys.argv[5:] == [str(sum(rank))])
finally:
    # A failed job reports as well, because the other jobs wait for its report.
    new = folder / f"{os.getpid()}.new"
    new.write_text(json.dumps(told))
    new.rename(new.with_suffix(".json"))
deadline = time.monotonic() + MOST_S
while len(list(folder.glob("*.json"))) < count:
    if time.monotonic() > deadline:
        sys.exit("the others of this run have not reported")
    time.sleep(0.02)
