#!/bin/sh
# versitygw, the S3 server that keeps what it stored through a kill: built by Go, once, into the user's cache folder,
# where tallystick looks for it. Without Go it says what to install.
set -eu
version=v1.8.0
folder=${TALLYSTICK_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/tallystick}/go/versitygw/$version
if command -v versitygw >/dev/null 2>&1 || [ -x "$folder/versitygw" ]; then
    exit 0
fi
if ! command -v go >/dev/null 2>&1; then
    echo "neither versitygw nor go was found: tests that need versitygw are skipped. To have it, install Go, for instance" >&2
    echo "  sudo apt-get install golang-go" >&2
    echo "and call this again: sh scripts/ensure-versitygw.sh" >&2
    exit 0
fi
echo "building versitygw $version: some minutes"
mkdir -p "$folder"
# first beside its place, so that a build that is killed leaves nothing that looks whole
fresh=$(mktemp -d "$folder/building.XXXXXX")
trap 'rm -rf "$fresh"' EXIT
GOBIN=$fresh go install -ldflags "-X main.Version=$version" "github.com/versity/versitygw/cmd/versitygw@$version"
mv "$fresh/versitygw" "$folder/versitygw"
