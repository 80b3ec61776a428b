"""Our part of the legacy iptables tables, through python-iptables.

A layer is written as a whole: one commit replaces the table in the kernel atomically, and libiptc carries the
counters of foreign rules over. What is already there is not written, so a repeated write costs a read and nothing
else. Each call reads the table anew, in the calling thread's network namespace; nothing is kept open between calls.
"""

from __future__ import annotations

import errno
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from ipvsproxy.errors import KernelError, describe_errno
from ipvsproxy.kernel.complaints import Complaints
from ipvsproxy.kernel.iptc_rules import RuleCodec, load_library
from ipvsproxy.kernel.xt_fingerprint import table_fingerprint, tables_glance
from ipvsproxy.kernel.xtables_lock import XTABLES_LOCK, xtables_lock
from ipvsproxy.model.enums import Family
from ipvsproxy.model.kernel_objects import Kind, Operation, Rule, RuleLayer, RuleTable, State, Verb
from ipvsproxy.plan.rule_parse import unrecognised
from ipvsproxy.plan.rule_text import canonical_layer

if TYPE_CHECKING:
    import iptc

log = structlog.get_logger()

_FOREIGN = (unrecognised("foreign rule"),)
_NO_SUCH_TABLE = frozenset({errno.ENOENT, errno.ENOPROTOOPT, errno.EAFNOSUPPORT, errno.EPROTONOSUPPORT})
_IPV6_INTERFACES = Path("/proc/net/if_inet6")
_IPV6_DISABLED = Path("/proc/sys/net/ipv6/conf/all/disable_ipv6")


class LegacyRules:
    """Meets `kernel.api.Rules` on the legacy tables.

    `own_chains` names the chains of each table that are ours; jumps to them from built-in chains are ours too.
    Raises Unsupported where python-iptables cannot be loaded.
    """

    kinds = frozenset({Kind.RULES})

    def __init__(self, own_chains: Mapping[RuleTable, Iterable[str]], *, lock_path: Path = XTABLES_LOCK) -> None:
        load_library()
        self._own_chains = {key: frozenset(chains) for key, chains in own_chains.items()}
        self._lock_path = lock_path
        self._codecs = {family: RuleCodec(family) for family in {key.family for key in self._own_chains}}
        self._written: dict[RuleTable, RuleLayer] = {}
        self._refusals = Complaints("rules_refused")
        self._stuck = Complaints("chain_not_deleted")

    @property
    def families(self) -> frozenset[Family]:
        """Families whose tables open here and now; IPv6 only where the kernel has it and it is not disabled."""
        return frozenset(family for family in self._codecs if self._works(family))

    def apply(self, operations: Sequence[Operation]) -> list[int]:
        """Write or remove layers, one commit each; one error number each. EAGAIN for all where the lock is held."""
        try:
            with xtables_lock(self._lock_path):
                return [self._apply_one(operation) for operation in operations]
        except KernelError as error:
            log.debug("iptables_lock_not_taken", reason=str(error), errno=error.number)
            return [error.number or errno.EIO] * len(operations)

    def read(self) -> State:
        """Our layers: the one last written where the table's part equals it, else in canonical form. KernelError.

        A table with nothing of ours has no key. Jumps come with each foreign rule that stands above one of them, so
        that a jump in the wrong place makes a different layer.
        """
        found = {key: self._read_table(key) for key in self._own_chains}
        return {Kind.RULES: {key: layer for key, layer in found.items() if layer}}

    def fingerprint(self) -> bytes:
        """One value for all our tables, foreign rules included. Raises KernelError."""
        return b"".join(table_fingerprint(key) for key in sorted(self._own_chains))

    def glance(self) -> bytes:
        """How many entries of what size all our tables have. Raises KernelError."""
        return tables_glance(self._own_chains)

    def _works(self, family: Family) -> bool:
        if family is Family.IPV6 and not has_ipv6():
            return False
        try:
            for name in {key.table for key in self._own_chains if key.family is family}:
                self._codecs[family].open_table(name).close()
        except KernelError as error:
            log.info("iptables_unusable", family=family.label, reason=str(error), errno=error.number)
            return False
        return True

    def _apply_one(self, operation: Operation) -> int:
        key, layer = operation.key, operation.settings
        assert isinstance(key, RuleTable)  # noqa: S101 - RULES operations have no other key
        codec = self._codecs[key.family]
        try:
            with closing(codec.open_table(key.table)) as table:
                editor = _TableEditor(codec, table, self._own_chains[key])
                if operation.verb is Verb.DELETE:
                    self._written.pop(key, None)
                    editor.remove()
                else:
                    assert isinstance(layer, RuleLayer)  # noqa: S101 - see above
                    editor.write(layer)
                    self._written[key] = layer
        except KernelError as error:
            self._refusals.tell(str(key), str(error), table=str(key), errno=error.number)
            return error.number or errno.EIO
        self._refusals.settle(str(key))
        return self._tell_stuck(key, editor.stuck)

    def _tell_stuck(self, key: RuleTable, stuck: Mapping[str, int]) -> int:
        """Say which chains could not be deleted; the first one's error number, 0 where there is none."""
        for chain, number in stuck.items():
            about = f"{key} {chain}"
            self._stuck.tell(about, describe_errno(number), table=str(key), chain=chain, errno=number)
        return next(iter(stuck.values()), 0)

    def _read_table(self, key: RuleTable) -> RuleLayer | None:
        codec = self._codecs[key.family]
        try:
            with closing(codec.open_table(key.table)) as table:
                layer = _TableEditor(codec, table, self._own_chains[key]).read()
        except KernelError as error:
            if error.number in _NO_SUCH_TABLE:  # no table, so nothing of ours in it
                return None
            raise
        written = self._written.get(key)
        return written if written and layer == canonical_layer(written) else layer


class _TableEditor:
    """Reads and changes our part of one open table; `write` and `remove` end with the one commit.

    `stuck` has the error number of each chain of ours that was to go and could not.
    """

    def __init__(self, codec: RuleCodec, table: iptc.Table, own_chains: frozenset[str]) -> None:
        self._codec = codec
        self._table = table
        self._own_chains = own_chains
        self.stuck: dict[str, int] = {}
        chains = codec.chains(table)
        self._present = [name for name in chains if name in own_chains]
        self._built_in = [name for name, is_built_in in chains.items() if is_built_in]

    def read(self) -> RuleLayer | None:
        """Our layer in canonical form, None where nothing of ours is there."""
        if not self._present:
            return None
        jumps = [rule for chain in self._built_in for rule in self._down_to_last_jump(chain)]
        rules = [rule for chain in self._present for rule in self._rules(chain)]
        return canonical_layer(RuleLayer(tuple(self._present), tuple(jumps), tuple(rules)))

    def write(self, layer: RuleLayer) -> None:
        """Make our part equal to `layer` in one commit; none where it is already. Raises KernelError."""
        if self.read() == canonical_layer(layer):
            return
        with self._codec.translated_errors(f"cannot write chains {', '.join(layer.chains)}"):
            self._remove_jumps()
            for chain in self._present:
                self._table.flush_entries(chain)
            for chain in set(layer.chains).difference(self._present):
                self._table.create_chain(chain)
            for rule in layer.rules:
                self._table.append_entry(rule.chain, self._codec.build(rule, self._table))
            for rule in reversed(layer.jumps):
                self._table.insert_entry(rule.chain, self._codec.build(rule, self._table), 0)
        self._delete_chains(chain for chain in self._present if chain not in layer.chains)
        self._codec.commit(self._table, layer)

    def remove(self) -> None:
        """Remove our part in one commit. Stuck with EMLINK: a foreign rule leads to the chain, which stays, empty."""
        if not self._present:
            return
        with self._codec.translated_errors("cannot remove our chains"):
            self._remove_jumps()
            for chain in self._present:
                self._table.flush_entries(chain)
        self._delete_chains(self._present)
        self._codec.commit(self._table, RuleLayer((), (), ()))

    def _delete_chains(self, chains: Iterable[str]) -> None:
        for chain in chains:
            try:
                with self._codec.translated_errors(f"cannot delete chain {chain}"):
                    self._table.delete_chain(chain)
            except KernelError as error:
                self.stuck[chain] = error.number

    def _entries(self, chain: str) -> Iterator[iptc.ip4tc.ipt_entry]:
        entry = self._table.first_rule(chain)
        while entry:
            yield entry
            entry = self._table.next_rule(entry)

    def _jump_places(self, chain: str) -> list[int]:
        """Places, from 0, of the rules in `chain` that lead to a chain of ours."""
        targets = [self._codec.target(entry, self._table) for entry in self._entries(chain)]
        return [place for place, target in enumerate(targets) if target in self._own_chains]

    def _down_to_last_jump(self, chain: str) -> list[Rule]:
        places = self._jump_places(chain)
        entries = itertools.islice(self._entries(chain), places[-1] + 1 if places else 0)
        return [
            self._codec.read(chain, entry, self._table) if place in places else Rule(chain, "", _FOREIGN)
            for place, entry in enumerate(entries)
        ]

    def _rules(self, chain: str) -> list[Rule]:
        return [self._codec.read(chain, entry, self._table) for entry in self._entries(chain)]

    def _remove_jumps(self) -> None:
        for chain in self._built_in:
            for place in reversed(self._jump_places(chain)):
                self._codec.delete_rule(self._table, chain, place)


def has_ipv6() -> bool:
    """Whether this network namespace has IPv6, and has not disabled it."""
    try:
        return _IPV6_INTERFACES.exists() and _IPV6_DISABLED.read_text().strip() != "1"
    except OSError:
        return False
