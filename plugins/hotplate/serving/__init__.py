"""From a Feast request to rows and back: plans, responses, the matrix reader."""
