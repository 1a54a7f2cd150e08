"""Redis and Valkey deployments and how to reach them; the only room that knows the client."""
