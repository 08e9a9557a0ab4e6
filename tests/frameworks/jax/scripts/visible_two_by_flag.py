import os

os.environ["JAX_CUDA_VISIBLE_DEVICES"] = "1,2"
import jax

print(jax.numpy.ones(3).devices(), jax.device_count())
