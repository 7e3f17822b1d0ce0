"""What each engine, at each version, does with a checkpoint: data files and their reader."""

from mlload.profiles.loading import available, load, parse_engine
from mlload.profiles.profile import Profile

__all__ = ["Profile", "available", "load", "parse_engine"]
