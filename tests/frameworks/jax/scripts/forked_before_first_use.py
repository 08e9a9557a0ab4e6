import multiprocessing
import warnings

import jax

warnings.simplefilter("ignore")


def work(number):
    return str(jax.numpy.ones(3).devices())


if __name__ == "__main__":
    with multiprocessing.get_context("fork").Pool(1) as pool:
        print(pool.map(work, range(2)))
