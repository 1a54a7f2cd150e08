"""The laboratory: servers that fail on request, and an oracle for what several processes served.

`proxy` stands in front of a server and spoils the connection. `servers`, `cluster`, `sentinel` and
`certificates` start what it stands in front of. `fleet` runs worker processes over one feature
repo, `history` is what they write down, and `checker` says which of their answers were wrong.
"""
