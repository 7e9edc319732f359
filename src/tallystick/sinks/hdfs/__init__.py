"""Files on HDFS: the file sink on a file system that `filesystem.py` reaches through `client.py`."""

from tallystick.sinks.hdfs.sink import HDFS

__all__ = ["HDFS"]
