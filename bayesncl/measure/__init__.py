"""Measures of features: functions of arrays, each in the published definition and in a sound one.

`registry` lists every reported number, `dimensions` has the table of per-dimension statistics, and
`result` the object that measuring returns. NumPy arrays or torch tensors in, plain numbers out.
"""
