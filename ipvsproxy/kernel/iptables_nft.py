"""Our part of the nf_tables flavour of the iptables tables, through `iptables-nft-save` and `iptables-nft-restore`.

python-iptables knows the legacy tables only, and to speak nf_tables directly would mean to encode each extension as
libxtables does. The two programs do it: a layer is one restore with `--noflush`, which the kernel takes as one
transaction. It names only what is ours, so foreign rules keep their place and counters. There is no lock in this
flavour; the text says what it expects (`-D` of each old jump), so a change that came between reading and writing makes
the whole restore fail instead of hitting a wrong rule. Programs run without a shell, in the calling thread's network
namespace.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import structlog

from ipvsproxy.errors import KernelError, Unsupported, describe_errno
from ipvsproxy.kernel.complaints import Complaints
from ipvsproxy.kernel.iptables import has_ipv6
from ipvsproxy.kernel.netlink import NETLINK_NETFILTER, NetlinkSocket, read_attributes
from ipvsproxy.model.enums import Family
from ipvsproxy.model.kernel_objects import Key, Kind, Operation, RuleLayer, RuleTable, Settings, State, Verb
from ipvsproxy.plan.rule_parse import SavedTable, own_layer, own_present, parse_save
from ipvsproxy.plan.rule_text import canonical_layer, rule_text

log = structlog.get_logger()

# For each program. A table is read and then restored, so the sync thread may wait for twice as long. A shorter bound is
# no good: on a loaded node with thousands of foreign rules a listing can take seconds, and one that is killed is begun
# anew by each retry, without end. Rules are written at starts and after drift, not when Services change.
TIMEOUT_S = 10.0
_SYSTEM_FOLDERS = "/usr/local/sbin:/usr/sbin:/sbin"  # a service's PATH may lack them
_STEMS = {Family.IPV4: "iptables-nft", Family.IPV6: "ip6tables-nft"}
# include/uapi/linux/netfilter/nfnetlink.h, nf_tables.h: the subsystem and NFT_MSG_GETGEN, struct nfgenmsg, NFTA_GEN_ID
_GET_GENERATION: Final = 10 << 8 | 16
_NO_FAMILY = bytes(4)
_GENERATION_ID: Final = 1
_NOTHING = RuleLayer((), (), ())
_ERRNO_BY_TEXT = {os.strerror(number): number for number in errno.errorcode}
_MISSING = re.compile(r"(?:doesn't|does not) exist")  # what the programs find out before they ask the kernel
_BAD_STATE, _BAD_PARAMETER = 1, 2  # exit codes, include/xtables.h: what the line names is not there; it makes no sense
_LINE_NUMBER = re.compile(r"\bline (\d+)(?: failed)?:")
_PREFIX = re.compile(r"^ip6?tables-\S+(?: v\S+ \(nf_tables\))?: ")


class NftRules:
    """Meets `kernel.api.Rules` on the nf_tables flavour.

    `own_chains` names the chains of each table that are ours; jumps to them from built-in chains are ours too. `path`
    says where the programs are, by default $PATH and the system's folders. Raises Unsupported where they are missing.
    """

    kinds = frozenset({Kind.RULES})

    def __init__(
        self,
        own_chains: Mapping[RuleTable, Iterable[str]],
        *,
        path: str | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        self._own_chains = {key: frozenset(chains) for key, chains in own_chains.items()}
        path = path or f"{os.environ.get('PATH', '')}:{_SYSTEM_FOLDERS}"
        self._programs = {family: _Programs(family, path, timeout_s) for family in {key.family for key in own_chains}}
        self._netlink = NetlinkSocket(NETLINK_NETFILTER, "the number of the nf_tables generation")
        self._written: dict[RuleTable, RuleLayer] = {}
        self._refusals = Complaints("rules_refused")
        self._stuck = Complaints("chain_not_deleted")

    @property
    def families(self) -> frozenset[Family]:
        """Families whose rules can be listed here and now; IPv6 only where the kernel has it and it is not disabled."""
        return frozenset(family for family in self._programs if self._works(family))

    def apply(self, operations: Sequence[Operation]) -> list[int]:
        """Write or remove layers, one transaction each; one error number each."""
        return [self._apply_one(operation) for operation in operations]

    def read(self) -> State:
        """Our layers: the one last written where the table's part equals it, else in canonical form. KernelError.

        A table with nothing of ours has no key. One program a family; no table is named, so none can come to be.
        """
        found: dict[Key, Settings] = {}
        for family, programs in self._programs.items():
            keys = [key for key in self._own_chains if key.family is family]
            tables = programs.save([key.table for key in keys])
            for key in keys:
                layer = own_layer(tables.get(key.table, SavedTable()), self._own_chains[key])
                if layer:
                    found[key] = self._as_written(key, layer)
        return {Kind.RULES: found}

    def fingerprint(self) -> bytes:
        """The number of the nf_tables generation, which every transaction of anybody raises. Raises KernelError."""
        answer = self._netlink.request(_GET_GENERATION, _NO_FAMILY)
        found = read_attributes(answer, len(_NO_FAMILY)).get(_GENERATION_ID)
        if found is None:
            raise KernelError("cannot read the number of the nf_tables generation", errno.EBADMSG)
        return found

    def glance(self) -> bytes:
        """As the fingerprint, which is one question. Raises KernelError."""
        return self.fingerprint()

    def close(self) -> None:
        """Close the socket; the next fingerprint opens another one, in the network namespace it runs in then."""
        self._netlink.close()

    def _as_written(self, key: RuleTable, layer: RuleLayer) -> RuleLayer:
        written = self._written.get(key)
        return written if written and layer == canonical_layer(written) else layer

    def _works(self, family: Family) -> bool:
        if family is Family.IPV6 and not has_ipv6():
            return False
        try:
            self._programs[family].save({key.table for key in self._own_chains if key.family is family})
        except KernelError as error:
            log.info("iptables_unusable", family=family.label, reason=str(error), errno=error.number)
            return False
        return True

    def _apply_one(self, operation: Operation) -> int:
        key, layer = operation.key, operation.settings
        assert isinstance(key, RuleTable)  # noqa: S101 - RULES operations have no other key
        try:
            if operation.verb is Verb.DELETE:
                self._written.pop(key, None)
                number = self._replace(key, _NOTHING)
            else:
                assert isinstance(layer, RuleLayer)  # noqa: S101 - see above
                number = self._replace(key, layer)
                self._written[key] = layer
        except KernelError as error:
            self._refusals.tell(str(key), str(error), table=str(key), errno=error.number)
            return error.number or errno.EIO
        self._refusals.settle(str(key))
        return number

    def _replace(self, key: RuleTable, layer: RuleLayer) -> int:
        """Make our part equal to `layer`; nothing is written where it is. EMLINK: a chain stays, see `stuck_chains`."""
        programs, own_chains = self._programs[key.family], self._own_chains[key]
        saved = programs.save([key.table], "-t", key.table).get(key.table, SavedTable())
        if (own_layer(saved, own_chains) or _NOTHING) == canonical_layer(layer):
            return 0
        programs.restore(restore_text(key.table, saved, own_chains, layer))
        stuck = stuck_chains(saved, own_chains, layer)
        for chain in stuck:
            reason = describe_errno(errno.EMLINK)
            self._stuck.tell(f"{key} {chain}", reason, table=str(key), chain=chain, errno=errno.EMLINK)
        return errno.EMLINK if stuck else 0


def restore_text(name: str, saved: SavedTable, own_chains: frozenset[str], layer: RuleLayer) -> str:
    """Input of a restore with `--noflush` that turns our part of the saved table into `layer`, in one transaction.

    To name a chain makes it, or flushes it. Each jump there is deleted by its text and inserted anew on top.
    """
    obsolete = [chain for chain in own_present(saved, own_chains) if chain not in layer.chains]
    stuck = stuck_chains(saved, own_chains, layer)
    lines = [f"*{name}"]
    lines += [f":{chain} - [0:0]" for chain in (*layer.chains, *obsolete)]
    lines += ["-D" + line.removeprefix("-A") for line in saved.leading_to(own_chains, saved.built_in)]
    lines += [f"-X {chain}" for chain in obsolete if chain not in stuck]
    lines += [rule_text(rule) for rule in layer.rules]
    lines += ["-I" + rule_text(rule).removeprefix("-A") for rule in reversed(layer.jumps)]
    return "".join(f"{line}\n" for line in (*lines, "COMMIT"))


def stuck_chains(saved: SavedTable, own_chains: frozenset[str], layer: RuleLayer) -> list[str]:
    """Chains of ours that are to go and cannot, since a foreign chain leads to them; they are emptied only."""
    obsolete = [chain for chain in own_present(saved, own_chains) if chain not in layer.chains]
    foreign = [chain for chain in saved.others if chain not in own_chains]
    return [chain for chain in obsolete if saved.leading_to({chain}, foreign)]


class _Programs:
    """Save and restore of one family. Raises Unsupported where a program is not on `path`."""

    def __init__(self, family: Family, path: str, timeout_s: float) -> None:
        self._family = family
        self._timeout_s = timeout_s
        self._save, self._restore = (_found(f"{_STEMS[family]}-{verb}", path) for verb in ("save", "restore"))

    def save(self, wanted: Iterable[str], *words: str) -> dict[str, SavedTable]:
        """The tables as the program prints them with these words. KernelError, also where a wanted one is unreadable.

        Source of the comment: iptables 1.8.9 iptables/xtables-save.c.
        """
        what = f"cannot list the {self._family.label} rules"
        text = self._run(what, [self._save, *words])
        for name in wanted:
            if f"# Table `{name}' is incompatible" in text:
                why = f"table {name} holds what iptables cannot show"
                raise KernelError(what, errno.EOPNOTSUPP, f"remove it with nft: nft list table … {name}", why)
        try:
            return parse_save(text)
        except (ValueError, KeyError) as error:
            raise KernelError(what, errno.EIO, why=f"{self._save} printed something else: {error}") from error

    def restore(self, text: str) -> None:
        """Carry out the text as one transaction, leaving alone what it does not name. KernelError."""
        self._run(f"cannot write the {self._family.label} rules", [self._restore, "--noflush"], text)

    def _run(self, what: str, words: Sequence[str], text: str = "") -> str:
        """The program's output. KernelError with what it said on its standard error."""
        try:
            done = subprocess.run(  # noqa: S603 - an absolute path, no shell, no word from outside
                words,
                input=os.fsencode(text),
                capture_output=True,
                check=False,
                timeout=self._timeout_s,
                env={**os.environ, "LC_ALL": "C"},
            )
        except subprocess.TimeoutExpired as error:
            why = f"{words[0]} did not end within {self._timeout_s:g} s"
            raise KernelError(what, errno.ETIMEDOUT, why=why) from error
        except OSError as error:
            raise KernelError(what, error.errno or errno.EIO, why=f"{words[0]}: {error.strerror}") from error
        if done.returncode:
            complaint = os.fsdecode(done.stderr)
            number = error_number(done.returncode, complaint)
            raise KernelError(what, number, _hint(number), _reason(complaint, text) or f"exit code {done.returncode}")
        return os.fsdecode(done.stdout)


def _found(name: str, path: str) -> str:
    program = shutil.which(name, path=path)
    if not program:
        what, hint = "cannot use iptables-nft", "install the iptables package (iptables-nft on some distributions)"
        raise Unsupported(what, errno.ENOENT, hint, why=f"{name} is not installed")
    return os.path.abspath(program)  # noqa: PTH100 - Path.resolve would follow the link, and the program asks its name


def error_number(exit_code: int, complaint: str) -> int:
    """The errno behind a failed program: the kernel's, which the programs print as the C library's text, or a likeness.

    EAGAIN where a line named a rule or chain that was there when we read: the table has changed since.
    """
    named = [text for text in _ERRNO_BY_TEXT if text in complaint]
    if named:
        return _ERRNO_BY_TEXT[max(named, key=len)]
    if exit_code == _BAD_PARAMETER:
        return errno.ENOENT if _MISSING.search(complaint) else errno.EINVAL
    return errno.EAGAIN if exit_code == _BAD_STATE else errno.EIO


def _hint(number: int) -> str:
    hints = {
        errno.ENOENT: "ipsets must stand before the rules that name them; extensions need their kernel modules",
        errno.EAGAIN: "another program is changing iptables rules; the next attempt may succeed",
        errno.EACCES: "run with the capability NET_ADMIN",
    }
    return hints.get(number, "")


def _reason(complaint: str, text: str) -> str:
    """The program's sentences without its name and advice, and the line of our input that it gives the number of."""
    sentences = (_PREFIX.sub("", line).strip() for line in complaint.splitlines())
    kept = [line for line in sentences if line and not line.startswith(("Try `", "Error occurred at line"))]
    found = _LINE_NUMBER.search(complaint)
    if found:
        kept += text.split("\n")[int(found[1]) - 1 : int(found[1])]
    return "; ".join(kept)
