import multiprocessing

import torch


def work(number):
    try:
        return str(torch.ones(3).cuda().device)
    except RuntimeError as error:
        return str(error).splitlines()[0]


if __name__ == "__main__":
    device = torch.ones(3).cuda().device
    with multiprocessing.get_context("fork").Pool(1) as pool:
        print(device, pool.map(work, range(1)))
