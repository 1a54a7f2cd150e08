"""What faults of the server cost: wrong answers, errors, latency, time to recover."""
