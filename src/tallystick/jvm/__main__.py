"""Fetch JVM parts ahead of time: ``python -m tallystick.jvm [PART…]``, all of them if none is named.

Whatever needs a part fetches it by itself. This is for machines that have no network later on: after it, nothing of
this package asks for one.
"""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

from tallystick.errors import TallystickError
from tallystick.jvm.resolver import IVY_FILE, resolve


def parts(ivy_file: Path = IVY_FILE) -> list[str]:
    """The names of all parts."""
    return [conf.attrib["name"] for conf in ElementTree.parse(ivy_file).iterfind("configurations/conf")]


def main(arguments: list[str], ivy_file: Path = IVY_FILE, cache: Path | None = None) -> int:
    known = parts(ivy_file)
    unknown = [name for name in arguments if name not in known]
    if unknown:
        print(f"there is no part {', '.join(unknown)}: needed one of {', '.join(known)}", file=sys.stderr)
        return 2
    for name in arguments or known:
        try:
            jars = resolve(name, ivy_file=ivy_file, cache=cache)
        except TallystickError as error:
            print(error, file=sys.stderr)
            return 1
        megabytes = sum(jar.stat().st_size for jar in jars) >> 20
        print(f"{name}: {len(jars)} jars, {megabytes} MB, in {jars[0].parent}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
