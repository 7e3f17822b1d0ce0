"""Layers that stand in for a model's linears, tables and experts: cut for one rank, quantized or not.

A model class knows nothing of either. Each layer takes a method, which makes its weights (`create_weights`), repacks
them once for the kernel chosen (`process_weights_after_loading`) and multiplies (`apply`).
"""
