"""Advice on how long to keep what: a traffic log and its changes, replayed under other policies."""
