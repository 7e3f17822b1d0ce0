"""Look at a checkpoint, plan it, prepare it and load it: one plan, many executors."""

__version__ = "0.1.0"
