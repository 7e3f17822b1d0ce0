"""vLLM's compiled operators where it is importable: what production runs. Thin: its own functions repack and multiply.

Written against 0.33; each call's signature is checked before it is used, so that another release says what changed.
"""
