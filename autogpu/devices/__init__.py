"""The machine's GPUs: values (:mod:`.model`), and the helper process that reads them (:mod:`.probe`, :mod:`.nvml`)."""
