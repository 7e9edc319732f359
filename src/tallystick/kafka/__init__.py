"""What sources and sinks for Kafka share: one set of settings for three clients, and the clients themselves."""
