"""Windowed features of the past: for training through Feast, and written out as a table."""
