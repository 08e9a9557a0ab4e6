import socket
import subprocess
import sys

import jax

if len(sys.argv) == 1:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    command = [sys.executable, __file__, address]
    ranks = [subprocess.Popen([*command, str(rank)], stdout=subprocess.PIPE, text=True) for rank in range(2)]
    print([rank.communicate()[0] for rank in ranks])
    sys.exit(max(rank.returncode for rank in ranks))
rank = int(sys.argv[2])
jax.distributed.initialize(sys.argv[1], num_processes=2, process_id=rank, local_device_ids=[rank])
print(jax.process_index(), jax.local_device_count(), jax.device_count())
