import threading

import jax.numpy as jnp

devices = []


def work():
    devices.append(str(jnp.ones((16, 16)).devices()))


workers = [threading.Thread(target=work) for _ in range(4)]
for worker in workers:
    worker.start()
for worker in workers:
    worker.join()
print(devices)
