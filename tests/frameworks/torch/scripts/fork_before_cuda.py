import multiprocessing

import torch


def work(barrier, answers):
    barrier.wait()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    answers.put(str(torch.ones(3, device=device).device))
    barrier.wait()


if __name__ == "__main__":
    context = multiprocessing.get_context("fork")
    barrier, answers = context.Barrier(2), context.SimpleQueue()
    workers = [context.Process(target=work, args=(barrier, answers)) for _ in range(2)]
    for worker in workers:
        worker.start()
    print([answers.get() for _ in workers])
    for worker in workers:
        worker.join()
