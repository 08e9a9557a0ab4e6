import os

os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
import jax

print(jax.numpy.ones(3).devices())
