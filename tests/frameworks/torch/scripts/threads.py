import threading

import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
devices = []


def work():
    devices.append(str(torch.ones(64, 64, device=device).device))


workers = [threading.Thread(target=work) for _ in range(4)]
for worker in workers:
    worker.start()
for worker in workers:
    worker.join()
print(devices)
