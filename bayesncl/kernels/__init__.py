"""Triton kernels for training on a GPU: BatchNorm with ReLU, max-pooling, small views, the update of LARS.

torch's compiler makes much the same of the functions as written, but is imported for six seconds and compiles for most
of a minute. Each module imports triton, which comes with torch for GPUs, and is imported where it is used.
"""
