"""Faults done on purpose, counted: python -m tests.faults (quick), python -m tests.faults --long."""
