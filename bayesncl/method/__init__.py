"""The paper's method as pure functions and modules."""
