"""A job that somebody stops when it has done all there is."""

import threading

from pyspark.sql import SparkSession

import tallystick as ts


def cancel(job: ts.Job, spark: SparkSession) -> None:
    """Run it until then."""
    done = threading.Event()

    def stop() -> None:
        assert done.wait(60)
        for query in spark.streams.active:
            query.processAllAvailable()
            query.stop()

    thread = threading.Thread(target=stop)
    thread.start()
    try:
        job.run(spark, on_finished=lambda *_: done.set())
    finally:
        thread.join(60)
