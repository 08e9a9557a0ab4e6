"""The machine's GPUs: what they are (:mod:`.model`), read by a helper process (:mod:`.probe`, :mod:`.nvml`)."""
