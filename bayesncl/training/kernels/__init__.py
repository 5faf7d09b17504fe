"""Triton kernels for training on a GPU: BatchNorm with ReLU, max-pooling, small views, LARS.

torch's compiler generates similar code, but takes six seconds to import and most of a minute to
compile. Import these modules inside functions: they need triton, which CPU builds of torch lack.
"""
