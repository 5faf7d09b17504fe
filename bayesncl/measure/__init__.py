"""Measures of features: functions of arrays, each in the published definition (`paper`) and in a sound one.

`interpretability` and `retrieval` score features against class labels; `file` runs both over a file;
`report` prints. Numpy arrays or torch tensors in, plain numbers out.
"""
