import multiprocessing

import jax


def work(number):
    return str(jax.numpy.ones(3).devices())


if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print(pool.map(work, range(2)))
