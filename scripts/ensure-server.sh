#!/bin/sh
# A server's program from a Debian package: ensure-server.sh PROGRAM PACKAGE. Installed through apt where that is there
# and allowed, without starting it: tallystick starts servers of its own. Without root it says what to install.
set -eu
program=$1 package=$2
if command -v "$program" >/dev/null 2>&1 || ls /usr/lib/postgresql/*/bin/"$program" >/dev/null 2>&1; then
    exit 0
fi
if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null 2>&1; then
    echo "$program was not found: tests that need it are skipped. To have it, for instance:" >&2
    echo "  sudo apt-get install $package" >&2
    exit 0
fi
echo "installing $package"
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
    # what apt installs is not started while this is here
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod +x "$policy"
    trap 'rm -f "$policy"' EXIT
fi
apt-get update -qq
DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "$package" >/dev/null
if command -v systemctl >/dev/null 2>&1; then
    systemctl disable --quiet "$package" 2>/dev/null || echo "$package could not be disabled: it may start at the next boot" >&2
fi
