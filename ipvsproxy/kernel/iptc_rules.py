"""One iptables rule to and from the kernel's binary form, through python-iptables.

The library is loaded once and late, since its import starts `ldconfig` several times. What it gets wrong is met here:

- `Rule6` writes interface masks of 0x01 instead of 0xff bytes. So interfaces are set through its ctypes structures.
- `Rule.tables`, asked for every target, opens all five tables, in the network namespace it first ran in. It is
  overridden.
- MASQUERADE shares a file with other targets (libxt_NAT.so) and is found for the first family only; to register it
  again ends the process (libxtables 1.8.9 `xtables_register_target`). So its few bytes are packed and read here.
- `final_check` sets each option again from its own saved text and so adds a backslash before every `'` of a comment.
  It is never called; the kernel checks.
- It walks matches by the size of the loaded extension and so misreads a rule that another revision wrote. We walk by
  the sizes in the rule and leave other revisions unread.
- It knows the table of an extension's options as it was before iptables 1.8.11, and would find but the first one, or
  end the process. It is walked here.
- It decodes every name that it meets as UTF-8, foreign chains' and interfaces' too, which are bytes. So chains are
  listed by libiptc's own calls, and a rule of ours that it fails to read comes back as UNRECOGNISED.
- It catches saved options by making file descriptor 1 a pipe for some microseconds. Nothing else may print there
  meanwhile, which holds because logs go to standard error.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import importlib
import importlib.util
import os
import struct
import sysconfig
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, cast

from ipvsproxy.errors import KernelError, Unsupported
from ipvsproxy.model.addr import format_addr
from ipvsproxy.model.enums import Family
from ipvsproxy.model.kernel_objects import Match, Option, Rule, RuleLayer
from ipvsproxy.plan.rule_parse import UNRECOGNISED, unrecognised

if TYPE_CHECKING:
    import iptc

_OF_TWO_WORDS = frozenset({"--match-set", "--tcp-flags"})
_PROTOCOL_WORDS = {1: "icmp", 6: "tcp", 17: "udp", 58: "ipv6-icmp", 132: "sctp"}
_PROTOCOL_NUMBERS = {word: number for number, word in _PROTOCOL_WORDS.items()}
_INVERT_IN_INTERFACE = 0x01  # IPT_INV_VIA_IN and IP6T_INV_VIA_IN
_INVERT_SOURCE = 0x08  # IPT_INV_SRCIP and IP6T_INV_SRCIP
_IPV6_HAS_PROTOCOL = 0x01  # IP6T_F_PROTO; IPv4 has no such flag
_RANDOM_FULLY = "--random-fully"
_RANDOM_FULLY_FLAG = 0x10  # NF_NAT_RANGE_PROTO_RANDOM_FULLY
_MASQUERADE = "MASQUERADE"
# struct nf_nat_ipv4_multi_range_compat (a count of 1, flags, addresses, ports) and struct nf_nat_range, padded to 8.
_MASQUERADE_DATA = {Family.IPV4: struct.Struct("=II16x"), Family.IPV6: struct.Struct("=I36x")}
_VERDICTS = ("ACCEPT", "DROP", "RETURN")
_LOWEST_ADDRESS = 4096  # the first page is nobody's
# Only these are loaded for reading: loading some others for a second family ends the process, see MASQUERADE above.
_READ_MATCHES = frozenset(
    {"comment", "set", "mark", "conntrack", "addrtype", "physdev", "icmp", "icmp6", "ipvs", "tcp"}
)
_READ_TARGETS = frozenset({"MARK", "REJECT"})


@functools.cache
def load_library() -> ModuleType:
    """The python-iptables package. Raises Unsupported where it or the xtables libraries are missing."""
    _point_to_extensions()
    before = os.environ.get("IPTABLES_LIBDIR")
    spec = importlib.util.find_spec("libxtwrapper")
    if spec and spec.origin:  # its own C part: without this it is searched for with gcc and ld, a dozen processes
        os.environ["IPTABLES_LIBDIR"] = str(Path(spec.origin).parent)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # its regular expressions and its use of distutils
            library = importlib.import_module("iptc")
        library.xtables.xtables._option_lookup = _find_option  # noqa: SLF001 - the one place that walks them
    except Exception as error:  # it raises bare Exceptions, AttributeError or OSError depending on what is missing
        raise Unsupported(
            "cannot load python-iptables",
            errno.ENOENT,
            hint="install libxtables12, libip4tc2, libip6tc2 and the iptables package's extensions",
            why=f"{type(error).__name__}: {error}",
        ) from error
    else:
        return library
    finally:
        if before is None:
            os.environ.pop("IPTABLES_LIBDIR", None)
        else:
            os.environ["IPTABLES_LIBDIR"] = before


def _point_to_extensions() -> None:
    """Name the extensions' folder, which the library otherwise searches for with `ldconfig -N -v`."""
    if "XTABLES_LIBDIR" in os.environ:
        return
    folders = (f"/usr/lib/{sysconfig.get_config_var('MULTIARCH')}", "/usr/lib64", "/usr/lib", "/usr/local/lib")
    for folder in folders:
        extensions = Path(folder, "xtables")
        if extensions.is_dir():
            os.environ["XTABLES_LIBDIR"] = str(extensions)
            return


def _find_option(
    _: object, entries: ctypes._Pointer[iptc.xtables.xt_option_entry], name: bytes
) -> iptc.xtables.xt_option_entry | None:
    """The entry of this name, where an empty one ends them. Since iptables 1.8.11 each has one member more: `base`.

    Behind the first entry as the library knows it, the older ones have the address of a name, or none where an empty
    one follows; the newer ones have that member, which is at most 36.
    """
    entry_type, at = type(entries.contents), ctypes.addressof(entries.contents)
    size = ctypes.sizeof(entry_type)
    if entry_type.from_address(at).name and ctypes.c_size_t.from_address(at + size).value < _LOWEST_ADDRESS:
        size += ctypes.sizeof(ctypes.c_size_t)  # with its padding
    while (entry := entry_type.from_address(at)).name != name:
        if not entry.name:
            return None
        at += size
    return entry


class RuleCodec:
    """Builds and reads rules of one family. The table given with each call must be open in this thread's namespace."""

    def __init__(self, family: Family) -> None:
        self._iptc = load_library()
        self._is_ipv4 = family is Family.IPV4
        self._family = family
        self._xtables = self._iptc.xtables.xtables(int(family))  # kept: the library's own reference is weak
        base = self._iptc.Rule if self._is_ipv4 else self._iptc.Rule6
        self._rule_class = type("RuleOfOneTable", (base,), {"tables": property(lambda rule: [rule.own_table])})

    def open_table(self, name: str) -> iptc.Table:
        """The table's current content, read now in this thread's network namespace. Raises KernelError."""
        table_class = self._iptc.Table if self._is_ipv4 else self._iptc.Table6
        with self.translated_errors(f"cannot open the {self._family.label} {name} table"):
            table = table_class(name, autocommit=False)
            table.refresh()  # the object is shared per name: its content may be old, or another namespace's
        return cast("iptc.Table", table)

    @contextmanager
    def translated_errors(self, what: str) -> Iterator[None]:
        """Turn the library's error into a KernelError with libiptc's errno; its exceptions carry only text."""
        try:
            yield
        except self._iptc.IPTCError as error:
            number = self._iptc.ip4tc._get_errno_loc()[0]  # noqa: SLF001 - the one place that knows the number
            raise KernelError(what, number) from error

    def commit(self, table: iptc.Table, layer: RuleLayer) -> None:
        """Put the changes into the kernel at once. KernelError; it names extensions of `layer` that are not there."""
        try:
            with self.translated_errors(f"cannot commit the {self._family.label} {table.name} table"):
                table.commit()
        except KernelError as error:
            missing = self._missing_in_kernel(layer)
            if not missing:
                raise
            hint = f"load the kernel modules of: {', '.join(missing)}"
            raise KernelError(error.what, error.number, hint, f"not in this kernel: {', '.join(missing)}") from error

    def chains(self, table: iptc.Table) -> dict[str, bool]:
        """The name of each chain, and whether it is built in. Bytes that are no text are spelled out: never ours."""
        names = []
        name = table._iptc.iptc_first_chain(table._handle)  # noqa: SLF001 - `Table.chains` decodes, see above
        while name:
            names.append(name)
            name = table._iptc.iptc_next_chain(table._handle)  # noqa: SLF001
        return {_text(name): bool(table._iptc.iptc_builtin(name, table._handle)) for name in names}  # noqa: SLF001

    def target(self, entry: iptc.ip4tc.ipt_entry, table: iptc.Table) -> str:
        """Where a rule leads: a chain, a verdict, or an extension's name; empty for a rule that only counts."""
        return _text(table.get_target(entry))

    def delete_rule(self, table: iptc.Table, chain: str, place: int) -> None:
        """Delete the rule at `place`, from 0. By number, since the library's own way needs to understand the rule."""
        if not table._iptc.iptc_delete_num_entry(chain.encode(), place, table._handle):  # noqa: SLF001 - see above
            raise self._iptc.IPTCError(f"can't delete rule {place} of chain {chain}")

    def build(self, rule: Rule, table: iptc.Table) -> ctypes.Array[ctypes.c_ubyte]:
        """The rule's bytes. Chains it jumps to must be in `table`, sets it names in the kernel. Raises KernelError."""
        raw = self._rule_class()
        raw.own_table = table
        self._set_header(raw, rule)
        for match in rule.matches:
            self._extension(raw.create_match, match.name, rule)
            self._set_options(raw.matches[-1], match.options, rule)
        if rule.target == _MASQUERADE:
            return self._with_masquerade(raw, rule)
        self._extension(raw.create_target, rule.target, rule)
        self._set_options(raw.target, rule.target_options, rule)
        return cast("ctypes.Array[ctypes.c_ubyte]", raw.rule)

    def _with_masquerade(self, raw: iptc.Rule, rule: Rule) -> ctypes.Array[ctypes.c_ubyte]:
        """The bytes of `raw` with a MASQUERADE target in the place of one that the library can build."""
        if any(option != Option(_RANDOM_FULLY) for option in rule.target_options):
            raise _refused(rule, errno.EINVAL, "MASQUERADE takes no option but --random-fully")
        raw.create_target("ACCEPT")
        head = bytes(raw.rule)[: raw.entry.target_offset]
        target = self._iptc.xtables.xt_entry_target()
        data = self._masquerade_data(_RANDOM_FULLY_FLAG if rule.target_options else 0)
        target.u.target_size = ctypes.sizeof(target) + len(data)
        target.u.user.name = _MASQUERADE.encode()
        packed = head + bytes(target) + data
        buffer = (ctypes.c_ubyte * len(packed)).from_buffer_copy(packed)
        ctypes.cast(buffer, ctypes.POINTER(type(raw.entry)))[0].next_offset = len(packed)
        return buffer

    def _masquerade_data(self, flags: int) -> bytes:
        values = (1, flags) if self._is_ipv4 else (flags,)
        return _MASQUERADE_DATA[self._family].pack(*values)

    def _set_header(self, raw: iptc.Rule, rule: Rule) -> None:
        if rule.protocol:
            raw.protocol = str(_PROTOCOL_NUMBERS.get(rule.protocol, rule.protocol))
        if rule.source:
            raw.src = rule.source.replace(" ", "")
        if rule.destination:
            raw.dst = rule.destination
        if rule.in_interface:
            _set_in_interface(raw.get_ip(), rule.in_interface)

    def _extension(self, create: Callable[[str], object], name: str, rule: Rule) -> None:
        try:
            create(name)
        except self._iptc.XTablesError as error:
            why = f'the {self._family.label} iptables extension "{name}" is missing on this host'
            hint = "install the iptables package's extensions, or load the kernel module"
            raise _refused(rule, errno.ENOENT, why, hint) from error

    def _set_options(self, extension: iptc.Match | iptc.Target, options: tuple[Option, ...], rule: Rule) -> None:
        for option in options:
            words = option.value.split(" ") if option.name in _OF_TWO_WORDS else [option.value] if option.value else []
            try:
                extension.set_parameter(option.name.removeprefix("--"), ["!", *words] if option.negated else words)
            except (self._iptc.XTablesError, ValueError, AttributeError, IndexError) as error:
                number = errno.ENOENT if option.name == "--match-set" else errno.EINVAL
                hint = "ipsets must stand before the rules that name them" if number == errno.ENOENT else ""
                raise _refused(rule, number, f'{option.name} "{option.value}" is refused', hint) from error

    def read(self, chain: str, entry: iptc.ip4tc.ipt_entry, table: iptc.Table) -> Rule:
        """The rule that `entry` of the open table holds; what our rules never use comes back as UNRECOGNISED."""
        try:
            return self._read(chain, entry, table)
        except (ValueError, LookupError, self._iptc.XTablesError) as error:
            return Rule(chain, self.target(entry, table), (unrecognised(repr(error)),))

    def _read(self, chain: str, entry: iptc.ip4tc.ipt_entry, table: iptc.Table) -> Rule:
        raw = self._rule_class()
        raw.own_table = table
        raw.entry = entry
        header = raw.get_ip()
        matches = [self._read_match(raw, match) for match in _matches(entry, ctypes.sizeof(entry))]
        odd = _odd_header(header, is_ipv4=self._is_ipv4)
        return Rule(
            chain=chain,
            target=self.target(entry, table),
            matches=(*odd, *matches),
            target_options=self._read_target_options(raw, entry),
            source=_source(header),
            destination=_network(bytes(header.dst), bytes(header.dmsk)),
            in_interface=_in_interface(header),
            protocol=_PROTOCOL_WORDS.get(header.proto, str(header.proto)) if header.proto else "",
        )

    def _read_match(self, raw: iptc.Rule, match: iptc.xtables.xt_entry_match) -> Match:
        name = match.u.user.name.decode()
        found = self._xtables.find_match(name) if name in _READ_MATCHES else None
        if not found or not _same_layout(found[0], match.u.user.revision, match.u.match_size):
            return unrecognised(f"{name} revision {match.u.user.revision}")
        parsed = self._iptc.Match(raw, match=match)
        return Match(parsed.name, _options(parsed))

    def _read_target_options(self, raw: iptc.Rule, entry: iptc.ip4tc.ipt_entry) -> tuple[Option, ...]:
        target_type = self._iptc.xtables.xt_entry_target
        target = ctypes.cast(ctypes.byref(entry, entry.target_offset), ctypes.POINTER(target_type))[0]
        name = target.u.user.name.decode()
        if not name:  # a verdict or a jump
            return ()
        if name == _MASQUERADE:
            return self._masquerade_options(ctypes.string_at(ctypes.addressof(target), target.u.target_size))
        found = self._xtables.find_target(name) if name in _READ_TARGETS else None
        if not found or not _same_layout(found[0], target.u.user.revision, target.u.target_size):
            return (Option(f"--{UNRECOGNISED}", f"revision {target.u.user.revision}"),)
        return _options(self._iptc.Target(raw, target=target))

    def _masquerade_options(self, target: bytes) -> tuple[Option, ...]:
        data = target[ctypes.sizeof(self._iptc.xtables.xt_entry_target) :]
        known = {self._masquerade_data(0): (), self._masquerade_data(_RANDOM_FULLY_FLAG): (Option(_RANDOM_FULLY),)}
        return known.get(data, (Option(f"--{UNRECOGNISED}", data.hex()),))

    def _missing_in_kernel(self, layer: RuleLayer) -> list[str]:
        """Extensions of the layer that the kernel does not list, after it has been asked to load them."""
        prefix = "/proc/thread-self/net/" + ("ip" if self._is_ipv4 else "ip6") + "_tables_"
        chains = {*layer.chains, *_VERDICTS}
        matches = {match.name for rule in layer.rules for match in rule.matches} - _listed(prefix + "matches")
        targets = {rule.target for rule in layer.rules} - chains - _listed(prefix + "targets")
        return sorted(matches | targets)


def _text(name: bytes) -> str:
    return name.decode("utf-8", "backslashreplace")


def _refused(rule: Rule, number: int, why: str, hint: str = "") -> KernelError:
    return KernelError(f"cannot build a rule of chain {rule.chain}", number, hint, why)


def _listed(path: str) -> set[str]:
    try:
        return set(Path(path).read_text().split())
    except OSError:
        return set()


def _matches(entry: iptc.ip4tc.ipt_entry, start: int) -> Iterator[iptc.xtables.xt_entry_match]:
    """Walk by the sizes that the rule itself states."""
    match_type = load_library().xtables.xt_entry_match
    offset = start
    while offset < entry.target_offset:
        match = ctypes.cast(ctypes.byref(entry, offset), ctypes.POINTER(match_type))[0]
        yield match
        offset += match.u.match_size


def _same_layout(extension: iptc.xtables.Extension, revision: int, size: int) -> bool:
    """Whether the loaded extension is the one that wrote these bytes, so that it may read them."""
    xtables = load_library().xtables
    expected = xtables.xt_align(extension.size + ctypes.sizeof(xtables.xt_entry_match))
    return extension.revision == revision and bool(expected == size)


def _options(extension: iptc.Match | iptc.Target) -> tuple[Option, ...]:
    try:
        saved = extension.get_all_parameters()
    except OSError as error:  # it writes to file descriptor 1, which may be closed
        raise KernelError(f"cannot read the options of {extension.name}", error.errno or errno.EIO) from error
    options = []
    for name, words in saved.items():
        negated = words[:1] == ["!"]
        # The extension saved `'` as `\\'`, which the library's shell-like splitting leaves as it is.
        value = " ".join(words[negated:]).replace("\\'", "'")
        options.append(Option(f"--{name}", value, negated))
    return tuple(options)


def _source(header: iptc.ip4tc.ipt_ip) -> str:
    text = _network(bytes(header.src), bytes(header.smsk))
    return f"! {text}" if text and header.invflags & _INVERT_SOURCE else text


def _network(address: bytes, mask: bytes) -> str:
    """The network as a CIDR; empty where it is everything."""
    prefix_len = _prefix_len(mask)
    return f"{format_addr(address)}/{prefix_len}" if prefix_len else ""


def _in_interface(header: iptc.ip4tc.ipt_ip) -> str:
    if not header.iniface_mask:
        return ""
    text = header.iniface.decode()
    return f"! {text}" if header.invflags & _INVERT_IN_INTERFACE else text


def _set_in_interface(header: iptc.ip4tc.ipt_ip, text: str) -> None:
    """Set name, mask and inversion; a trailing `+` matches every name that starts so, and is not compared."""
    if text.startswith("!"):
        header.invflags |= _INVERT_IN_INTERFACE
    name = text.lstrip("! ")
    header.iniface = name.encode()
    header.iniface_mask = b"\xff" * _compared_bytes(name.encode())


def _compared_bytes(name: bytes) -> int:
    """With the closing NUL it is the whole name."""
    return len(name) - 1 if name.endswith(b"+") else len(name) + 1


def _prefix_len(mask: bytes) -> int | None:
    """Length of a mask of leading ones in bits; None for any other."""
    bits = len(mask) * 8
    ones = int.from_bytes(mask).bit_count()
    return ones if int.from_bytes(mask) == (1 << bits) - (1 << (bits - ones)) else None


def _odd_header(header: iptc.ip4tc.ipt_ip, *, is_ipv4: bool) -> tuple[Match, ...]:
    """An UNRECOGNISED match where the header uses what our rules never do: an outgoing interface, a goto."""
    known_flags = 0 if is_ipv4 or not header.proto else _IPV6_HAS_PROTOCOL
    mask = header.iniface_mask
    plain = (
        not header.outiface_mask
        and header.flags == known_flags
        and not header.invflags & ~(_INVERT_SOURCE | _INVERT_IN_INTERFACE)
        and _prefix_len(bytes(header.smsk)) is not None
        and _prefix_len(bytes(header.dmsk)) is not None
        and mask == b"\xff" * len(mask)
        and len(mask) in {0, _compared_bytes(header.iniface)}
    )
    return () if plain else (unrecognised(bytes(header).hex()),)
