"""What people do to a running deployment: invalidate, purge, and see what is wrong with it."""
