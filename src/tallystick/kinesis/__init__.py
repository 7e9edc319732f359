"""What the Kinesis sink writes beside the data, and the Kinesis source reads: the mark of each record."""

from tallystick.kinesis.marks import KEY_LETTERS_MAX, Mark, Repeats, hash_key, parse

__all__ = ["KEY_LETTERS_MAX", "Mark", "Repeats", "hash_key", "parse"]
