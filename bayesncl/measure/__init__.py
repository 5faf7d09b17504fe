"""Measures of features: functions of arrays, each in the published definition (`paper`) and in a sound one.

`dimensions` is the table of per-dimension statistics, `measures` the registry of what is reported, `result` what
measuring gives. Numpy arrays or torch tensors in, plain numbers out.
"""
