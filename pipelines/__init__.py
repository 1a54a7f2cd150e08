"""Pipelines that put Hotplate to work; they import `hotplate`, and it never imports them."""
