"""The one class of ours that runs in Spark's JVM: how it writes a checkpoint to S3. A jar, and its source beside it."""

from __future__ import annotations

from pathlib import Path

SOURCE = Path(__file__).with_name("S3CheckpointFileManager.java")
JAR = Path(__file__).with_name("tallystick-checkpoints.jar")
CLASS = "tallystick.S3CheckpointFileManager"
