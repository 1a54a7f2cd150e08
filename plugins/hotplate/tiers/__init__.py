"""Where rows are kept: one back end a file."""
