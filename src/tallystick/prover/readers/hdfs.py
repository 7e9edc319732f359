"""Folders of HDFS, as any client sees them."""

from __future__ import annotations

from pathlib import PurePosixPath

from tallystick.prover.place import Place
from tallystick.prover.readers.files import FolderReader, moved
from tallystick.sinks.hdfs import HDFS
from tallystick.sinks.hdfs.filesystem import HdfsFiles


class HdfsReader(FolderReader):
    kind = "hdfs"
    servers = ("hdfs",)

    @classmethod
    def redirect(cls, sink: HDFS, name: str, place: Place) -> HDFS:
        address, folder = place.server_for_job("hdfs"), PurePosixPath("/", place.table_name(name))
        made: HDFS = moved(sink, f"{address}{folder}", folder, HdfsFiles(address))
        made.address = address
        return made
