"""Who must forget what, and when."""
