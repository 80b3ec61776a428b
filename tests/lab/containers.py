"""What a kubelet and a container runtime make of a Pod: runc's configuration of one of its containers.

As containerd does it with cgroup v2, for what the chart's Pods have; a field that is not known here is refused, so that
no test believes to have seen it at work. Nothing here touches a machine.
Sources: OCI runtime specification 1.0.2; kubernetes v1.37.2 pkg/kubelet/kubelet_pods.go, pkg/kubelet/qos/policy.go.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

Object: TypeAlias = Mapping[str, Any]  # as JSON has it
Made: TypeAlias = dict[str, Any]


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# What a container has if nothing is said: containerd, pkg/oci/spec.go defaultUnixCaps.
DEFAULT_CAPABILITIES = _words(
    "AUDIT_WRITE CHOWN DAC_OVERRIDE FOWNER FSETID KILL MKNOD NET_BIND_SERVICE NET_RAW SETFCAP SETGID SETPCAP "
    "SETUID SYS_CHROOT"
)
ALL_CAPABILITIES = DEFAULT_CAPABILITIES | _words(
    "AUDIT_CONTROL AUDIT_READ BLOCK_SUSPEND BPF CHECKPOINT_RESTORE DAC_READ_SEARCH IPC_LOCK IPC_OWNER LEASE "
    "LINUX_IMMUTABLE MAC_ADMIN MAC_OVERRIDE NET_ADMIN NET_BROADCAST PERFMON SYSLOG SYS_ADMIN SYS_BOOT SYS_MODULE "
    "SYS_NICE SYS_PACCT SYS_PTRACE SYS_RAWIO SYS_RESOURCE SYS_TIME SYS_TTY_CONFIG WAKE_ALARM"
)  # include/uapi/linux/capability.h

# The profile at hand is podman's. containerd's keeps these, too, from who has not SYS_ADMIN.
_ONLY_PODMANS = _words(
    "add_key bpf fsconfig fsmount fsopen fspick keyctl mount mount_setattr move_mount open_tree perf_event_open "
    "pivot_root request_key setdomainname sethostname setns umount umount2 unshare"
)
_MASKED = ["/proc/acpi", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/timer_list", "/sys/firmware"]
_READ_ONLY = ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"]
_HARDENED = ["nosuid", "noexec", "nodev"]
_KNOWN_SECURITY = _words(
    "allowPrivilegeEscalation capabilities privileged readOnlyRootFilesystem runAsGroup runAsNonRoot runAsUser "
    "seccompProfile"
)
_FACTORS = {"": 1, "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30}
# Every Pod is told of the Service `kubernetes`; its own settings of these names hold against that.
KUBERNETES_SERVICE = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "443"}


@dataclass(frozen=True, slots=True)
class Image:
    """An image, unpacked."""

    rootfs: Path
    entrypoint: Sequence[str]
    environment: Mapping[str, str]


def container_of(pod: Object, name: str) -> Object:
    """The container of this name."""
    both = (*pod["spec"].get("initContainers", ()), *pod["spec"]["containers"])
    return next(container for container in both if container["name"] == name)


def oci_config(pod: Object, name: str, image: Image, volumes: Mapping[str, Path], profile: Object) -> Made:
    """config.json of a Pod's container.

    `volumes`: where on the node each volume of the Pod is; `profile`: what seccomp's RuntimeDefault stands for, in the
    form of containers-common. The node's network is the one that runc is started in. Raises ValueError for a field of
    the security context, or a network, that is not known here.
    """
    container = container_of(pod, name)
    security = {**pod["spec"].get("securityContext", {}), **container.get("securityContext", {})}
    if unknown := security.keys() - _KNOWN_SECURITY:
        raise ValueError(f"{name}: securityContext.{', '.join(sorted(unknown))} is not known here")
    if not pod["spec"].get("hostNetwork"):
        raise ValueError(f"{name}: only Pods on the node's network are known here")
    is_privileged = bool(security.get("privileged"))
    linux: Made = {
        "namespaces": [{"type": kind} for kind in ("pid", "ipc", "mount", "cgroup")],
        "resources": _resources(container.get("resources", {}), is_privileged=is_privileged),
    }
    if not is_privileged:
        linux |= {"maskedPaths": _MASKED, "readonlyPaths": _READ_ONLY}
        if security.get("seccompProfile", {}).get("type") == "RuntimeDefault":
            linux["seccomp"] = seccomp(profile, capabilities(security))
    return {
        "ociVersion": "1.0.2",
        "process": _process(pod, container, image, security),
        "root": {"path": str(image.rootfs), "readonly": bool(security.get("readOnlyRootFilesystem"))},
        "mounts": [*_system_mounts(is_writable=is_privileged), *_volume_mounts(container, volumes)],
        "linux": linux,
    }


def _process(pod: Object, container: Object, image: Image, security: Object) -> Made:
    user = security.get("runAsUser", 0)
    if security.get("runAsNonRoot") and user == 0:
        raise ValueError(f"{container['name']}: runAsNonRoot, but the user is root")
    environment = _environment(pod, container, image)
    words = [*container.get("command", image.entrypoint), *container.get("args", ())]
    allowed = [f"CAP_{name}" for name in sorted(capabilities(security))]
    # Source: capabilities(7): who is not root loses the permitted ones when the program is executed.
    held = allowed if user == 0 else []
    process: Made = {
        "terminal": False,
        "user": {"uid": user, "gid": security.get("runAsGroup", 0)},
        "args": [expand(word, environment) for word in words],
        "env": [f"{name}={value}" for name, value in environment.items()],
        "cwd": container.get("workingDir", "/"),
        "capabilities": {"bounding": allowed, "effective": held, "permitted": held},
        "noNewPrivileges": security.get("allowPrivilegeEscalation") is False,
    }
    if pod["spec"].get("priorityClassName") == "system-node-critical":
        process["oomScoreAdj"] = -997
    return process


def capabilities(security: Object) -> frozenset[str]:
    """What a container with this security context may, without CAP_."""
    if security.get("privileged"):
        return ALL_CAPABILITIES
    asked = security.get("capabilities", {})
    lost, given = (
        ALL_CAPABILITIES if "ALL" in names else frozenset(names)
        for names in (asked.get("drop", ()), asked.get("add", ()))
    )
    return (DEFAULT_CAPABILITIES - lost) | given


def _environment(pod: Object, container: Object, image: Image) -> dict[str, str]:
    found = {**image.environment, **KUBERNETES_SERVICE}
    for entry in container.get("env", ()):
        if "valueFrom" in entry:
            found[entry["name"]] = field(pod, entry["valueFrom"]["fieldRef"]["fieldPath"])
        else:
            found[entry["name"]] = expand(entry.get("value", ""), found)
    return found


def field(pod: Object, path: str) -> str:
    """A field of a Pod by its path, as fieldRef has it."""
    return str(functools.reduce(lambda found, key: found[key], path.split("."), pod))


def expand(text: str, environment: Mapping[str, str]) -> str:
    """`$(NAME)` is the variable's value, and stays where there is none; `$$` is a dollar."""

    def meant(match: re.Match[str]) -> str:
        name = match[1]
        return "$" if name is None else environment.get(name, match[0])

    return re.sub(r"\$(?:\$|\(([^)]*)\))", meant, text)


def _resources(resources: Object, *, is_privileged: bool) -> Made:
    found: Made = {"devices": [{"allow": is_privileged, "access": "rwm"}]}
    if limit := resources.get("limits", {}).get("memory"):
        found["memory"] = {"limit": in_bytes(limit), "swap": in_bytes(limit)}  # no swap beside
    if share := resources.get("requests", {}).get("cpu"):
        found["cpu"] = {"shares": max(2, in_millis(share) * 1024 // 1000)}
    return found


def in_bytes(quantity: str) -> int:
    """Bytes of a quantity with a binary suffix, or none."""
    number, suffix = re.fullmatch(r"(\d+)(\D*)", quantity).groups()  # type: ignore[union-attr]  # else it raises
    return int(number) * _FACTORS[suffix]


def in_millis(quantity: str) -> int:
    """Thousandths of a processor."""
    return int(quantity[:-1]) if quantity.endswith("m") else int(float(quantity) * 1000)


def _system_mounts(*, is_writable: bool) -> list[Made]:
    access = "rw" if is_writable else "ro"
    return [
        _mount("/proc", "proc", _HARDENED),
        _mount("/dev", "tmpfs", ["nosuid", "strictatime", "mode=755", "size=65536k"]),
        _mount("/dev/pts", "devpts", ["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"]),
        _mount("/dev/shm", "tmpfs", [*_HARDENED, "mode=1777", "size=65536k"]),  # noqa: S108  # where POSIX has it
        _mount("/dev/mqueue", "mqueue", _HARDENED),
        _mount("/sys", "sysfs", [*_HARDENED, access]),
        _mount("/sys/fs/cgroup", "cgroup", [*_HARDENED, "relatime", access]),
    ]


def _mount(place: str, kind: str, options: Sequence[str]) -> Made:
    return {"destination": place, "type": kind, "source": kind, "options": list(options)}


def _volume_mounts(container: Object, volumes: Mapping[str, Path]) -> list[Made]:
    return [
        {
            "destination": mount["mountPath"],
            "type": "bind",
            "source": str(volumes[mount["name"]]),
            "options": ["rbind", "rprivate", "ro" if mount.get("readOnly") else "rw"],
        }
        for mount in container.get("volumeMounts", ())
    ]


def seccomp(profile: Object, allowed: frozenset[str]) -> Made:
    """The system calls that a process with these capabilities may make on x86-64, of a profile of containers-common."""
    names = {f"CAP_{name}" for name in allowed}
    rules = [rule for rule in map(_without_podmans, profile["syscalls"]) if rule["names"] and _applies(rule, names)]
    kept = ("names", "action", "args", "errnoRet")
    return {
        "defaultAction": profile["defaultAction"],
        "defaultErrnoRet": profile["defaultErrnoRet"],
        "architectures": ["SCMP_ARCH_X86_64", "SCMP_ARCH_X86", "SCMP_ARCH_X32"],
        "syscalls": [{key: rule[key] for key in kept if rule.get(key)} for rule in rules],
    }


def _without_podmans(rule: Object) -> Object:
    if rule["action"] != "SCMP_ACT_ALLOW" or rule.get("includes"):
        return rule
    return {**rule, "names": [name for name in rule["names"] if name not in _ONLY_PODMANS]}


def _applies(rule: Object, names: set[str]) -> bool:
    wanted, unwanted = (rule.get(key) or {} for key in ("includes", "excludes"))
    fits = "amd64" in wanted.get("arches", ["amd64"]) and "amd64" not in unwanted.get("arches", ())
    return fits and names.issuperset(wanted.get("caps", ())) and names.isdisjoint(unwanted.get("caps", ()))
