"""Our kernels in Triton, a torch reference beside each. Imported only when one is going to run or to be compiled.

Letters, in every file: N = out_features, K = in_features, M = rows of activations, G = group size along K, E = experts,
T = tokens; a weight is W [N, K] and y = x W^T. Tiles: BN, BM, BK; P = width of a plane, see `planes`.
"""
