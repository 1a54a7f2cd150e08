"""Card fraud scoring: transactions, simulated or loaded from a file, all in one table format."""
