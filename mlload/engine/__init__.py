"""Runs a model: to measure it, or to calibrate it. `native` loads it with our own loaders and layers."""
