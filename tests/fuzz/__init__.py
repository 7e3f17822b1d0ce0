"""Mutation fuzzing of everything that reads a stranger's bytes. `python -m tests.fuzz --help`"""
