import os

os.environ["CUDA_VISIBLE_DEVICES"] = "0,1"
import jax

print(os.environ["CUDA_VISIBLE_DEVICES"], jax.numpy.ones(3).devices())
