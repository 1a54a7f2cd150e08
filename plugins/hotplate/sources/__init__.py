"""Where the truth is read on a miss."""
