"""Files on a local or shared POSIX file system: `sink.py` has the verbs, `publish.py` the commit."""

from tallystick.sinks.files.sink import Files

__all__ = ["Files"]
