#!/bin/sh
# Makes .venv with ipvsproxy and the development tools in it: `make setup` calls this when something it reads has changed.
#
#   sh tests/lab/setup.sh VENV
#
# 1. system packages: what the venv needs stops the setup when it cannot be had; what only the kernel tests need is
#    named and left, so that `make check` works for anybody. apt is asked only when something is missing.
# 2. the venv, from the hash-locked requirements. Two dependencies come as sources only, so the locked setuptools goes
#    in first and builds them: with build isolation pip would fetch an unlocked one.
# 3. byte code for everything: PYTHONDONTWRITEBYTECODE may be set, and the VM reads these files read-only and slowly.
set -eu

VENV=$1
PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin
unset PYTHONHOME PYTHONPATH PIP_USER PIP_TARGET
export DEBIAN_FRONTEND=noninteractive PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1

say() { echo "setup: $*"; }
stop() { echo "setup: $*" >&2; exit 1; }
have() { command -v "$1" >/dev/null 2>&1; }
new_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }

find_python() {
    for candidate in python3 python3.13 python3.12 python3.11 python3.14; do
        if new_enough "$candidate"; then echo "$candidate"; return; fi
    done
}

# The packages that carry venv and the C headers are apart from Debian's Python; any other build has both or cannot be helped by apt.
python_packages() {
    case $(command -v "$1") in /usr/bin/*|/bin/*) ;; *) return 0 ;; esac
    "$1" -c 'import venv, ensurepip' 2>/dev/null || echo "$(basename "$1")-venv"
    "$1" -c 'import os, sysconfig as s; os.stat(s.get_path("include") + "/Python.h")' 2>/dev/null || echo "$(basename "$1")-dev"
}

build_packages() {
    if [ "$PYTHON" ]; then python_packages "$PYTHON"; else echo python3 python3-venv python3-dev; fi
    have gcc || echo gcc libc6-dev
}

tool_packages() {
    while read -r command package; do have "$command" || echo "$package"; done <<TOOLS
iptables iptables
ipset ipset
ipvsadm ipvsadm
ip iproute2
modprobe kmod
conntrack conntrack
tcpdump tcpdump
nft nftables
curl curl
jq jq
systemctl systemd
TOOLS
}

# The VM's parts, only where this kernel cannot run the tests itself. `KERNEL` stands for one cloud kernel, chosen later.
vm_packages() {
    [ "$(uname -m)" = x86_64 ] || return 0
    if [ "$PYTHON" ] && "$PYTHON" tests/lab/machine.py --host-has-ipvs; then return 0; fi
    have qemu-system-x86_64 || echo qemu-system-x86
    [ -x /usr/lib/qemu/virtiofsd ] || [ -x /usr/libexec/virtiofsd ] || have virtiofsd || echo VIRTIOFSD
    ls /boot/vmlinuz-*-cloud-amd64 >/dev/null 2>&1 || echo KERNEL
}

# One kernel alone (a pattern would bring all of them): the newest 6.12, which the tests were written on, else the newest.
newest_kernel() {
    kernels=$(apt-cache search --names-only '^linux-image-[0-9].*-cloud-amd64$' | cut -d' ' -f1 | sort -V)
    echo "$kernels" | grep '^linux-image-6\.12\.' | tail -n 1 | grep . || echo "$kernels" | tail -n 1
}

real_names() {
    for package in "$@"; do
        case $package in
            KERNEL) newest_kernel ;;
            VIRTIOFSD) if apt-cache show virtiofsd >/dev/null 2>&1; then echo virtiofsd; else echo qemu-system-common; fi ;;
            *) echo "$package" ;;
        esac
    done
}

apt_install() {
    say "installing with apt:" "$@"
    apt-get update -qq </dev/null || return 1
    # shellcheck disable=SC2046  # one word a package is what is meant
    apt-get install -y -q --no-install-recommends $(real_names "$@") </dev/null
}

install_missing() {
    build=$(build_packages); lab=$(tool_packages; vm_packages)
    [ "$build$lab" ] || return 0
    if have apt-get && [ "$(id -u)" = 0 ]; then
        # shellcheck disable=SC2086
        apt_install $build $lab || say "apt could not install everything, see above"
        PYTHON=$(find_python)
        build=$(build_packages); lab=$(tool_packages; vm_packages)
    fi
    # shellcheck disable=SC2086,SC2116
    [ -z "$build" ] || stop "cannot make $VENV: this machine lacks" $(echo $build) "(Debian's names). Install them, as root, and run make setup again."
    # shellcheck disable=SC2086,SC2116
    [ -z "$lab" ] || say "the kernel tests (make test) will not run: this machine lacks" $(echo $lab) "(Debian's names; KERNEL: a linux-image-6.12.*-cloud-amd64). Install them, as root; make check works without."
}

make_venv() {
    new_enough "$VENV/bin/python" || "$PYTHON" -m venv --clear "$VENV"
    say "installing the locked requirements into $VENV with $("$VENV/bin/python" --version)"
    "$VENV/bin/python" -m pip install -q --require-hashes -r requirements-build.txt
    "$VENV/bin/python" -m pip install -q --require-hashes --no-build-isolation --use-pep517 -r requirements-dev.txt
    "$VENV/bin/python" -m pip install -q --no-deps --no-build-isolation -e .
    say "compiling byte code"
    "$VENV/bin/python" -m compileall -q -j 0 "$VENV/lib" ipvsproxy >/dev/null || true  # some packages ship templates that are no Python
}

PYTHON=$(find_python)
install_missing
make_venv
touch "$VENV/.ready"
say "done"
