"""Data quality of the demo: a gate that must pass good data and name each planted fault."""
