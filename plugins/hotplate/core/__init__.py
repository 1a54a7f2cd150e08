"""The read-through engine: what to answer from the cache, what to load, what to keep."""
