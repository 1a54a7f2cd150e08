"""Reads alone: card payments scored with features from Feast, bare and cached."""
