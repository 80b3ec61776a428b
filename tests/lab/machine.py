"""Runs a command as root beside a kernel that has IPVS, dummy devices, ipset and xtables.

    python tests/lab/machine.py [--auto] [--out DIR] [--timeout S] [--mem 3G] [--icount] [--net] -- COMMAND ARGUMENT…

Why a VM: the tests change routes, rules and virtual servers, and many machines (containers, CI, cloud sandboxes) run
kernels without IPVS and without loadable modules. Why emulated: such machines seldom have a KVM that runs a stock
kernel. Why this shape: Debian's cloud kernels have virtio-fs and PCI built in, so neither an initrd nor a disk image is
made (those before 6.12 get a small initrd). The guest's root is this machine's root, read-only through virtiofs below a
tmpfs overlay: what is installed here is installed there, at the same paths, and nothing the command does lasts. What
should last it writes to the folder $LAB_OUT, which is `--out` here, at the same path in the guest (and at /out). One VM
at a time, by a lock.

With --auto the command runs on this machine when its own kernel will do, in fresh network, mount and process
namespaces; paths, $LAB_OUT, exit code and time limit are the same, /out is not there.

The kernel is the newest 6.12 of this machine. With $LAB_KERNEL it is that folder's, where a package of Debian's was
unpacked, and --auto takes a VM:

    apt-get download linux-image-5.10.0-46-cloud-amd64 && dpkg -x linux-image-5.10*.deb build/linux-5.10
    LAB_KERNEL=build/linux-5.10 python tests/lab/machine.py -- uname -r

Exit code: the command's; 124 at the time limit, 125 when the machine could not be had.
"""

import argparse
import contextlib
import fcntl
import os
import re
import secrets
import select
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import NoReturn

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # run by path, before anything is installed

from tests.lab import initrd
from tests.lab.relay import Relay

TIMED_OUT = 124
NO_MACHINE = 125

SBIN = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
BOOTS = 3
BOOT_S = 300.0  # it takes some ten on a machine that is not busy
INITRD = "initrd"
STARTED = ".started"  # the guest leaves this in the output folder when it is up

LOCK = Path("/var/tmp/ipvsproxy-lab.lock")  # noqa: S108  # root's own file; one name for every checkout of this machine
VIRTIOFSD = ("/usr/lib/qemu/virtiofsd", "/usr/libexec/virtiofsd")  # Debian 12, Debian 13

# PID 1 of the guest. The first root is the read-only one, where the kernel itself finds modules; the command gets the
# overlay. `rm /run/netns` because a named namespace is a mount, which virtiofs shows as a plain file that
# `ip netns` would stumble over. The mark ends the VM, from outside; powering off at once would race with it for the
# console. The cgroup keeps cpusets in use: without, each container switches them on and off, for which Linux patches
# its page allocator, and an emulated CPU may meet the breakpoint of that when it is gone ("Oops: int3").
INIT = """#!/bin/bash
export PATH={path}
mount -t proc proc /proc
mount --bind {modules} /lib/modules
modprobe -a {load}
mount -t tmpfs tmpfs /mnt
mkdir -p /mnt/up /mnt/work /mnt/root
mount -t overlay overlay -o lowerdir=/,upperdir=/mnt/up,workdir=/mnt/work /mnt/root
cd /mnt/root
mount --bind {modules} lib/modules
mount -t proc proc proc
mount -t sysfs sys sys
mount -t cgroup2 cgroup sys/fs/cgroup
echo +cpuset > sys/fs/cgroup/cgroup.subtree_control
mkdir sys/fs/cgroup/lab
mount -t devtmpfs dev dev
mkdir -p dev/pts dev/shm .{out}
mount -t devpts devpts dev/pts
mount -t tmpfs tmpfs dev/shm
mount -t virtiofs out .{out}
[ {out} = /out ] || ln -sfn {out} out
: > .{out}/{started}
rm -rf run/netns
ip link set lo up
if [ -e sys/class/net/eth0 ]; then
    ip link set eth0 up; ip addr add 10.0.2.15/24 dev eth0; ip route add default via 10.0.2.2
fi
chroot . /bin/sh {command} </dev/null
code=$?
sync
echo "{mark} $code"
sleep 60
echo o > /proc/sysrq-trigger
"""

# The same on this machine: fresh namespaces instead of a guest.
HOST_INIT = """
mount -t sysfs sys /sys
mount -t cgroup2 cgroup /sys/fs/cgroup 2>/dev/null
mkdir -p /run/netns
mount -t tmpfs tmpfs /run/netns
ip link set lo up
exec /bin/sh {command} </dev/null
"""

IPVS = "modprobe -qa ip_vs dummy; ip link add ipvsproxy0 type dummy && test -e /proc/net/ip_vs"
"""Whether a kernel has all that we program: a script that ends with 0. What it makes goes with its namespace."""
NETFILTER = """set -e
modprobe -qa ip_set xt_set nf_conntrack_netlink nft_compat || true
for version in "" 6; do
    ipset create ports$version hash:ip,port family inet$version
    ipset create ranges$version hash:ip,port,net family inet$version
    for flavour in legacy nft; do
        run="ip${version}tables-$flavour -w 5"
        $run -t filter -A INPUT -m conntrack --ctstate NEW -m set --match-set ranges$version dst,dst,src -j REJECT
        $run -t mangle -A OUTPUT -m comment --comment probe -j MARK --or-mark 0x4000
        $run -t nat -A POSTROUTING -m mark --mark 0x4000/0x4000 -j MASQUERADE
        $run -t nat -A POSTROUTING -m set --match-set ports$version dst,dst -j MASQUERADE
    done
done
ipset create numbers bitmap:port range 0-65535
conntrack -L
"""
"""Whether a kernel has the part of it that is netfilter's: rules of both flavours, ipsets, connection tracking."""


class LabError(Exception):
    """No machine to run on: what is missing and what to do about it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What kind of machine: `icount` is one emulated CPU whose clock counts instructions, for repeatable figures."""

    memory: str = "3G"
    icount: bool = False
    network: bool = False
    """eth0 as 10.0.2.15/24; this machine's loopback is 10.0.2.2 from the guest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The programs and the kernel that make a VM."""

    qemu: str
    virtiofsd: str
    kernel: Path
    modules: Path
    """The folder lib/modules that belongs to the kernel."""

    @property
    def release(self) -> str:
        """What the kernel calls itself."""
        return self.kernel.name.removeprefix("vmlinuz-")


def chosen_kernel() -> Path | None:
    """The folder that $LAB_KERNEL names, with boot and lib/modules in it."""
    folder = os.environ.get("LAB_KERNEL")
    return Path(folder).resolve() if folder else None


def find_parts(root: Path) -> Parts:
    """What a VM needs on this machine, with the kernel in `root`. Raises LabError with the name of what is missing."""
    path = f"{os.environ.get('PATH', '')}:{SBIN}"
    qemu = shutil.which("qemu-system-x86_64", path=path)
    virtiofsd = next((name for name in VIRTIOFSD if os.access(name, os.X_OK)), shutil.which("virtiofsd", path=path))
    kernel = newest_kernel(root / "boot")
    modules = next((folder for folder in (root / "lib/modules", root / "usr/lib/modules") if folder.exists()), None)
    wanted = {
        "qemu-system-x86_64 (package qemu-system-x86)": qemu,
        "virtiofsd (package qemu-system-common on Debian 12, virtiofsd on Debian 13)": virtiofsd,
        f"a cloud kernel in {root / 'boot'} (package linux-image-6.12.*-cloud-amd64)": kernel,
        f"its modules in {root / 'lib/modules'}": modules,
    }
    missing = [name for name, found in wanted.items() if not found]
    if missing or not (qemu and virtiofsd and kernel and modules):
        hint = "Run `make setup` as root" if root == Path("/") else f"Unpack a kernel's package to {root}: dpkg -x"
        raise LabError(f"cannot start a VM: this machine lacks {'; '.join(missing)}. {hint}.")
    if os.geteuid() != 0:
        raise LabError(
            "cannot start a VM: the guest's root is this machine's root, which only root can serve. Use sudo."
        )
    return Parts(qemu=qemu, virtiofsd=virtiofsd, kernel=kernel, modules=modules)


def newest_kernel(boot: Path) -> Path | None:
    """The newest 6.12 cloud kernel, which the tests were written on; else the newest cloud kernel; else None."""
    kernels = sorted(
        boot.glob("vmlinuz-*-cloud-amd64"), key=lambda path: [int(number) for number in re.findall(r"\d+", path.name)]
    )
    preferred = [path for path in kernels if path.name.startswith("vmlinuz-6.12.")]
    return next(reversed(preferred or kernels), None)


def host_has(probe: str) -> bool:
    """True if `probe` (IPVS, NETFILTER) succeeds in a fresh network namespace of this machine, and we may make one."""
    command = ["unshare", "--net", "--mount", "/bin/sh", "-c", probe]
    try:
        return subprocess.run(command, capture_output=True, env={"PATH": SBIN}, check=False).returncode == 0
    except FileNotFoundError:
        return False


def run(  # all but the first two have one sensible value
    argv: Sequence[str],
    out_dir: Path,
    *,
    shape: Shape = Shape(),  # frozen, so that sharing it is safe
    timeout_s: float = 1500,
    env: Mapping[str, str] | None = None,
    host_probe: str | None = None,
) -> int:
    """Run `argv` in this folder as root, in a VM or on this machine if `host_probe` succeeds here; the exit code.

    `env` adds to the small environment of `guest_environment`. Output goes to stdout as it comes. Raises LabError.
    """
    out_dir = out_dir.resolve()
    out_dir.mkdir(parents=True, exist_ok=True)
    chosen = chosen_kernel()
    no_vm_asked_for = not shape.icount and not shape.network and chosen is None
    on_host = host_probe is not None and no_vm_asked_for and host_has(host_probe)
    parts = None if on_host else find_parts(chosen or Path("/"))
    with tempfile.TemporaryDirectory(prefix="ipvsproxy-lab.", dir="/var/tmp") as run_dir:  # mkdtemp makes it safe
        command = Path(run_dir, "command")
        command.write_text(command_script(argv, guest_environment(out_dir) | dict(env or {})))
        if parts is None:
            return _run_on_host(command, timeout_s)
        return _run_in_vm(command, out_dir, parts, shape, timeout_s)


def guest_environment(out_dir: Path) -> dict[str, str]:
    """The environment that the command starts with: nothing of ours leaks in, so both ways to run it are alike.

    No byte code is written: it would end in the overlay, in memory. The terminal is said to be dumb: nobody is at it.
    """
    fixed = {
        "PATH": SBIN,
        "HOME": str(Path("~root").expanduser()),
        "LANG": "C.UTF-8",
        "TERM": "dumb",
        "COLUMNS": "120",
        "LAB_OUT": str(out_dir),
    }
    return fixed | {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONUNBUFFERED": "1"}


def command_script(argv: Sequence[str], env: Mapping[str, str]) -> str:
    """A shell script that runs `argv` in this folder with just `env`."""
    settings = [f"{name}={value}" for name, value in env.items()]
    return f"cd {shlex.quote(str(Path.cwd()))} && exec {shlex.join(['env', '-i', *settings, *argv])}\n"


def _run_on_host(command: Path, timeout_s: float) -> int:
    say("this kernel has what is needed: running in fresh namespaces")
    namespaces = ["--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
    script = HOST_INIT.format(command=command)
    environment = {"PATH": SBIN}
    with subprocess.Popen(["unshare", *namespaces, "/bin/sh", "-c", script], env=environment) as process:
        try:
            return process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            say(f"stopped: the command had not ended after {timeout_s:g} s")
            return TIMED_OUT
        finally:
            process.kill()


def _run_in_vm(command: Path, out_dir: Path, parts: Parts, shape: Shape, timeout_s: float) -> int:
    """Boot and run. A kernel now and then dies of the emulation before it is up: nothing has been run then.

    So that, and only that, is tried again.
    """
    started = out_dir / STARTED
    with _one_at_a_time():
        for boot in range(1, BOOTS + 1):
            started.unlink(missing_ok=True)
            code = boot_once(command, out_dir, parts, shape, timeout_s)
            if started.exists():
                started.unlink()
                return _told(code, timeout_s)
            say(f"the guest did not come up: see the kernel's or qemu's last words above (boot {boot} of {BOOTS})")
    raise LabError(f"no VM came up in {BOOTS} boots.")


def _told(code: int | None, timeout_s: float) -> int:
    if code is None:
        raise LabError("the VM ended before the command did: see the kernel's or qemu's last words above.")
    if code == TIMED_OUT:
        say(f"stopped the VM: the command had not ended after {timeout_s:g} s. Give it more with --timeout.")
    return code


def boot_once(command: Path, out_dir: Path, parts: Parts, shape: Shape, timeout_s: float) -> int | None:
    """One VM from its start to its end: the command's exit code or TIMED_OUT; None if the VM ended before."""
    run_dir = command.parent
    mark = f"\x1e{secrets.token_hex(8)}"
    init = run_dir / "init"
    load = "overlay virtio_net" if shape.network else "overlay"
    folders = {"modules": shlex.quote(str(parts.modules)), "out": shlex.quote(str(out_dir))}
    fields = {"path": SBIN, "load": load, "command": command, "mark": mark, "started": STARTED}
    init.write_text(INIT.format(**fields, **folders))
    init.chmod(0o700)
    make_initrd(parts, run_dir)
    with contextlib.ExitStack() as stack:
        say(f"booting {parts.release} under emulation, time limit {timeout_s:g} s")
        stack.enter_context(_serving(parts.virtiofsd, Path("/"), run_dir / "root", cache="always"))
        stack.enter_context(_serving(parts.virtiofsd, out_dir, run_dir / "out", cache="none"))
        console = stack.enter_context(_child(qemu_command(parts, shape, run_dir), stdout=subprocess.PIPE))
        relay = Relay(mark.encode(), _write_out)
        begun = time.monotonic()
        in_time = _follow(console, relay, begun + min(timeout_s, BOOT_S), until=(out_dir / STARTED).exists)
        in_time = in_time and _follow(console, relay, begun + timeout_s)
    return relay.exit_code if in_time else TIMED_OUT


def make_initrd(parts: Parts, run_dir: Path) -> None:
    """Make the file `initrd` in `run_dir` if the kernel needs one to reach its root. Raises LabError."""
    try:
        if needed := initrd.needed_modules(parts.modules.parents[1], parts.release):
            (run_dir / INITRD).write_bytes(initrd.make(needed))
    except (OSError, subprocess.CalledProcessError) as error:
        told = error.stderr if isinstance(error, subprocess.CalledProcessError) else ""
        raise LabError(f"cannot make an initrd for {parts.release}: {error} {told}".rstrip()) from error


def qemu_command(parts: Parts, shape: Shape, run_dir: Path) -> list[str]:
    """The command line of qemu. The memory is shared because virtiofsd reads and writes the guest's buffers in it.

    Four levels of page tables instead of five: one look-up less for each page that the emulator has not seen yet.
    """
    cpu = ["-accel", "tcg,thread=multi", "-smp", str(min(os.cpu_count() or 1, 4))]
    if shape.icount:
        cpu = ["-accel", "tcg,thread=single", "-icount", "shift=0,sleep=on", "-smp", "1"]
    disks: list[str] = []
    for tag in ("root", "out"):
        disks += ["-chardev", f"socket,id={tag},path={run_dir / tag}"]
        disks += ["-device", f"vhost-user-fs-pci,chardev={tag},tag={tag}"]
    network = ["-nic", "user,model=virtio-net-pci"] if shape.network else ["-nic", "none"]
    kernel = "console=ttyS0 quiet loglevel=1 panic=-1 mitigations=off "
    start: list[str] = []
    if (run_dir / INITRD).exists():
        start = ["-initrd", str(run_dir / INITRD)]
        kernel += f"-- {run_dir / 'init'}"  # an argument of its /init
    else:
        kernel += f"rootfstype=virtiofs root=root ro init={run_dir / 'init'}"
    return [
        *(parts.qemu, "-nodefaults", "-no-user-config", "-no-reboot", "-display", "none", "-serial", "stdio"),
        *("-M", "q35", "-cpu", "max,la57=off", "-m", shape.memory, *cpu),
        *("-object", f"memory-backend-memfd,id=memory,size={shape.memory},share=on", "-numa", "node,memdev=memory"),
        *disks,
        *network,
        *("-kernel", str(parts.kernel), *start, "-append", kernel),
    ]


@contextlib.contextmanager
def _one_at_a_time() -> Iterator[None]:
    """Hold the lock that every VM of this machine takes: two emulated ones on two cores only time each other out."""
    with LOCK.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("waiting for another VM of this machine to end")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def _child(command: Sequence[str], *, stdout: int | None) -> Iterator[subprocess.Popen[bytes]]:
    """A process that ends with this block, and with us even if we are killed (setpriv, of util-linux)."""
    bound = ["setpriv", "--pdeathsig", "KILL", *command]
    with subprocess.Popen(bound, stdin=subprocess.DEVNULL, stdout=stdout) as process:
        try:
            yield process
        finally:
            process.kill()


@contextlib.contextmanager
def _serving(virtiofsd: str, folder: Path, socket: Path, *, cache: str) -> Iterator[None]:
    """Serve `folder` at `socket`. The -o options are the C program's; the Rust one takes them too."""
    options = ["-o", f"source={folder}", "-o", f"cache={cache}", "-o", "sandbox=chroot", "-o", "xattr"]
    log = socket.with_suffix(".log")
    socket.unlink(missing_ok=True)  # of the boot before
    command = ["/bin/sh", "-c", 'exec "$0" "$@" 2>' + shlex.quote(str(log)), virtiofsd]
    with _child([*command, f"--socket-path={socket}", *options], stdout=subprocess.DEVNULL) as process:
        deadline = time.monotonic() + 20
        while not socket.exists():
            if process.poll() is not None or time.monotonic() > deadline:
                raise LabError(f"virtiofsd does not serve {folder}: {log.read_text().strip() or 'it says nothing'}")
            time.sleep(0.01)
        yield


def _follow(
    console: subprocess.Popen[bytes], relay: Relay, deadline: float, until: Callable[[], bool] = lambda: False
) -> bool:
    """Pass the console on until the command or the VM ended, or `until`; False when the deadline came first."""
    assert console.stdout is not None  # it was asked for
    descriptor = console.stdout.fileno()
    while relay.exit_code is None and not until():
        remaining = deadline - time.monotonic()
        if remaining <= 0:
            relay.close()
            return False
        if select.select([descriptor], [], [], min(remaining, 1))[0]:
            chunk = os.read(descriptor, 65536)
            if not chunk:
                relay.close()
                break
            relay.feed(chunk)
    return True


def _write_out(output: bytes) -> None:
    sys.stdout.buffer.write(output)
    sys.stdout.buffer.flush()


def say(sentence: str) -> None:
    """Tell progress, apart from the command's own output."""
    print(f"machine: {sentence}", file=sys.stderr, flush=True)


def _end(number: int, _frame: FrameType | None) -> NoReturn:
    sys.exit(128 + number)  # unwinds, so that the children go first


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Run a command as root beside a kernel that has IPVS.")
    parser.add_argument("--auto", action="store_true", help="on this machine if its kernel has IPVS, else in a VM")
    parser.add_argument("--out", type=Path, default=Path("build/machine"), help="$LAB_OUT of the command (%(default)s)")
    parser.add_argument(
        "--timeout", type=float, default=1500, metavar="S", help="seconds until it is ended (%(default)s)"
    )
    parser.add_argument("--mem", default="3G", help="memory of the VM (%(default)s)")
    parser.add_argument(
        "--icount", action="store_true", help="one CPU whose clock counts instructions: repeatable figures"
    )
    parser.add_argument("--net", action="store_true", help="eth0; this machine's loopback is 10.0.2.2 from the guest")
    parser.add_argument(
        "--env", action="append", default=[], metavar="NAME=VALUE", help="for the command; may be repeated"
    )
    parser.add_argument(
        "--host-has-ipvs", action="store_true", help="only tell, by the exit code, whether --auto needs no VM"
    )
    parser.add_argument("command", nargs="*", metavar="COMMAND", help="after --")
    arguments = parser.parse_args(argv)
    if not arguments.command and not arguments.host_has_ipvs:
        parser.error("give a command after --")
    return arguments


def main() -> int:
    """Run the command line; the exit code."""
    arguments = parse()
    if arguments.host_has_ipvs:
        return 0 if host_has(IPVS) else 1
    signal.signal(signal.SIGTERM, _end)
    try:
        return run(
            arguments.command,
            arguments.out,
            shape=Shape(memory=arguments.mem, icount=arguments.icount, network=arguments.net),
            timeout_s=arguments.timeout,
            env=dict(setting.split("=", 1) for setting in arguments.env),
            host_probe=IPVS if arguments.auto else None,
        )
    except LabError as error:
        say(str(error))
        return NO_MACHINE


if __name__ == "__main__":
    sys.exit(main())
