"""Advice on how long to keep what."""
