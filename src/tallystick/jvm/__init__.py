"""JVM parts without Maven: found, fetched once with the Ivy that PySpark ships, and kept in one cache folder."""

from tallystick.jvm.java import find_java
from tallystick.jvm.resolver import cache_folder, resolve

__all__ = ["cache_folder", "find_java", "resolve"]
