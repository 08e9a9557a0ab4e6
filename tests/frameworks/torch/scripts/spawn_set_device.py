import torch
import torch.multiprocessing as mp


def work(rank, results):
    torch.cuda.set_device(rank)
    results.put((rank, str(torch.ones(3).cuda().device)))


if __name__ == "__main__":
    results = mp.get_context("spawn").SimpleQueue()
    mp.spawn(work, args=(results,), nprocs=2)
    print(sorted(results.get() for _ in range(2)))
