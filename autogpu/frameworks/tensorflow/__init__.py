"""TensorFlow, 1.15 and later: the seams through which it takes GPUs, and what is filled in there.

No tf.config setter is ever called: a setter makes the script's own, ordinary calls raise later. Every way to a GPU ends
in a ConfigProto, and there the grant is filled in where the script said nothing.
"""

from autogpu.frameworks.tensorflow.seams import fallback, put_seams, seams

__all__ = ["fallback", "put_seams", "seams"]
