"""The classes of ours that run in Spark's JVM: how it writes a checkpoint to S3, and to a local disk; how the job of an
epoch is run, how many slices it has, and in which order its source is read.

One jar, and the sources of it beside it.
"""

from __future__ import annotations

from pathlib import Path

S3_CLASS = "tallystick.S3CheckpointFileManager"
LOCAL_CLASS = "tallystick.LocalCheckpointFileManager"
VOTES_CLASS = "tallystick.EpochVotes"
SLICES_CLASS = "tallystick.SliceCount"
ORDER_CLASS = "tallystick.SourceOrder"
CLASSES = (VOTES_CLASS, LOCAL_CLASS, S3_CLASS, SLICES_CLASS, ORDER_CLASS)
SOURCES = tuple(Path(__file__).with_name(f"{name.rpartition('.')[2]}.java") for name in sorted(CLASSES))
JAR = Path(__file__).with_name("tallystick-jvm.jar")
