"""JVM parts without Maven: found, fetched once with the Ivy that PySpark ships, and kept in one cache folder."""

from tallystick.jvm.java import find_java
from tallystick.jvm.resolver import cache_folder, resolve, version_of

__all__ = ["cache_folder", "find_java", "resolve", "version_of"]
