"""Triton kernels for training on a GPU: BatchNorm with ReLU, max-pooling, small views, the update of LARS.

torch's compiler makes much the same of the functions as written, but takes six seconds to import and most of a minute
to compile. Import these modules inside functions: they need triton, which CPU builds of torch lack.
"""
