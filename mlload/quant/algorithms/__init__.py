"""Mathematics that makes quantized weights, on torch tensors alone: no model, no files.

N = out_features, K = in_features, G = group size along K, b = bits.
"""
