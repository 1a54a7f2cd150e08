"""Time windows over event logs: the engine alone, without a server and without Feast."""
