"""A real vLLM in its own environment: started, watched, measured, and compared with what was predicted."""
