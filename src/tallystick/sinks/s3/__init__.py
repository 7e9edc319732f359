"""Objects in S3: `upload.py` writes them on executors, `complete.py` publishes them, `notes.py` finds them again."""

from tallystick.sinks.s3.sink import S3

__all__ = ["S3"]
