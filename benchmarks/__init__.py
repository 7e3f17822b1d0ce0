"""Measurements, each a script that keeps its results in `results/`."""
