import os

os.environ["CUDA_VISIBLE_DEVICES"] = "2"
import jax

print(os.environ["CUDA_VISIBLE_DEVICES"], jax.device_count(), jax.numpy.ones(3).devices())
