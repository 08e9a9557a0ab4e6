"""Every TensorFlow script gets the idlest GPU and a memory policy, unchanged.

Importing this package does nothing: the start-up files call :mod:`autogpu.activation` when a framework is imported.
"""

__version__ = "0.1.0"
