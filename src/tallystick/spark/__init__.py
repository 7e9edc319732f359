"""The Spark side: sessions, the foreachBatch bridge, slices on executors, jobs."""
