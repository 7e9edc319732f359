#!/bin/sh
# Java 17 or newer, or a way to get it: installed through apt where that is there and allowed.
set -eu
major() { java -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p' | head -n 1; }
if command -v java >/dev/null 2>&1 && [ "$(major)" -ge 17 ] 2>/dev/null; then
    exit 0
fi
if [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null 2>&1; then
    echo "installing Java 17 (openjdk-17-jre-headless)"
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq openjdk-17-jre-headless >/dev/null
    exit 0
fi
echo "Java 17 or newer is needed and was not found. Install it, for instance:" >&2
echo "  sudo apt-get install openjdk-17-jre-headless" >&2
exit 1
