import os

import jax

os.environ["CUDA_VISIBLE_DEVICES"] = "2"
print(os.environ["CUDA_VISIBLE_DEVICES"], jax.device_count(), jax.numpy.ones(3).devices())
