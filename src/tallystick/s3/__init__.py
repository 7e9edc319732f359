"""S3: the client, for whoever needs it."""
