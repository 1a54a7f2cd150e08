"""The demo: a stream of card payments scored with features from Feast, bare and cached."""
