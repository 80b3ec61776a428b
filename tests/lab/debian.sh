#!/bin/sh
# Runs a command on a copy of this checkout in a Debian of its own: as root, on any distribution that has mmdebstrap.
#
#   sh tests/lab/debian.sh ROOT COMMAND ARGUMENT…
#
# Why: the VM boots Debian's cloud kernel and shows the guest the root that it is started from, and the image is made of
# Debian's packages; elsewhere neither is to be had. ROOT is the folder that Debian is, or was, made in. The copy, with
# what the command leaves, is ROOT/src. The kernel stays this machine's; mounts end with the command.
set -eu

SUITE=bookworm
HERE=$(cd "$(dirname "$0")/../.." && pwd)
stop() { echo "debian: $*" >&2; exit 1; }

[ $# -ge 2 ] || stop "usage: sh tests/lab/debian.sh ROOT COMMAND ARGUMENT…"
[ "$(id -u)" = 0 ] || stop "a root file system is made, mounted and entered by root only. Use sudo."
command -v mmdebstrap >/dev/null || stop "no mmdebstrap here. Install the packages mmdebstrap and debian-archive-keyring."

mkdir -p "$1"
ROOT=$(cd "$1" && pwd)
shift
[ -e "$ROOT/.ready" ] || mmdebstrap --quiet --variant=apt --include=ca-certificates,git,make,python3 "$SUITE" "$ROOT"
: > "$ROOT/.ready"

mkdir -p "$ROOT/src"
find "$ROOT/src" -mindepth 1 -maxdepth 1 ! -name .venv ! -name build -exec rm -rf {} +  # what is dear to make stays
tar -C "$HERE" --exclude=./.venv --exclude=./build -cf - . | tar -C "$ROOT/src" --no-same-owner -xf -
# How this machine reaches package registries, by names and by certificates.
for file in /etc/resolv.conf /etc/hosts /etc/pip.conf /etc/ssl/certs/ca-certificates.crt; do
    [ ! -e "$file" ] || cp --dereference "$file" "$ROOT$file"
done

export ROOT HOME=/root PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
# shellcheck disable=SC2016  # the inner shell's words
exec unshare --mount /bin/sh -euc '
mount --bind "$ROOT" "$ROOT"  # container tools want their root to be a mount
for folder in proc sys dev var/tmp; do mount --rbind "/$folder" "$ROOT/$folder"; done  # var/tmp: one VM a machine
mount -t tmpfs tmpfs "$ROOT/tmp"
exec chroot "$ROOT" /bin/sh -c '\''cd /src && exec "$@"'\'' sh "$@"
' sh "$@"
