"""A small, complete, valid checkpoint to try every command on, made from nothing."""
