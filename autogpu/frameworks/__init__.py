"""One package for each framework, and what autogpu and a framework know of each other in ``base``."""
