"""Functions that build every sentence about GPUs that autogpu prints, from decisions, GPU readings and errors."""
