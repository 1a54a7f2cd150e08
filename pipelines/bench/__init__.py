"""Benchmarks: every claim as a ratio against the real alternative, measured in the same run."""
