"""Warm features before they are asked for: what is read, which of it is worth keeping warm, how."""
