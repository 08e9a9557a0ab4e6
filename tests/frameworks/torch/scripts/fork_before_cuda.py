import multiprocessing

import torch


def work(number):
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return str(torch.ones(3, device=device).device)


if __name__ == "__main__":
    with multiprocessing.get_context("fork").Pool(2) as pool:
        print(pool.map(work, range(2)))
