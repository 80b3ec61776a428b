"""The statistics in the kernel's IPVS answers, read only where somebody wants them: they are two thirds of a message.

Kernels from 4.1 on send all counters in 64 bits beside the older attribute, which has 32 for all but bytes. Source:
include/uapi/linux/ip_vs.h (IPVS_STATS_ATTR_*), net/netfilter/ipvs/ip_vs_ctl.c.
"""

from __future__ import annotations

from ipvsproxy.kernel.attribute_reader import AttributeReader, Wanted
from ipvsproxy.kernel.gnlpy_compat import (
    AttrListPacker,
    IpvsCmdAttrList,
    IpvsDestAttrList,
    IpvsServiceAttrList,
    IpvsStatsAttrList,
    IpvsStatsAttrList64,
    attribute_number,
)
from ipvsproxy.model.observed import Statistics

# In the order of Statistics' fields.
_NARROW = {
    **dict.fromkeys(("CONNS", "INPKTS", "OUTPKTS"), "I"),
    **dict.fromkeys(("INBYTES", "OUTBYTES"), "Q"),
    **dict.fromkeys(("CPS", "INPPS", "OUTPPS", "INBPS", "OUTBPS"), "I"),
}
_WIDE = dict.fromkeys(_NARROW, "Q")
_MISSING = -1


class StatisticsReader:
    """Reads the statistics of the entries that come as the attribute `outer`, whose attributes are `table`'s."""

    def __init__(self, outer: str, table: type[AttrListPacker]) -> None:
        number = attribute_number(IpvsCmdAttrList, outer)
        wide, narrow = attribute_number(table, "STATS64"), attribute_number(table, "STATS")
        self._wide = AttributeReader(number, _counters(IpvsStatsAttrList64, _WIDE, wide, _MISSING))
        self._narrow = AttributeReader(number, _counters(IpvsStatsAttrList, _NARROW, narrow, 0))

    def read(self, body: bytes) -> Statistics:
        """The counters of one message; all zero where the kernel sends none."""
        values = self._wide.read(body)
        if values[0] == _MISSING:
            values = self._narrow.read(body)
        return Statistics(*values)

    def read_run(self, piece: bytes, length: int) -> list[Statistics] | None:
        """The same of a piece of a dump, see AttributeReader.read_run; None of a kernel without wide counters, too."""
        found = self._wide.read_run(piece, length)
        if found is None or found[0][0] == _MISSING:
            return None
        return [Statistics(*values) for values in found]


def _counters(table: type[AttrListPacker], codes: dict[str, str], inside: int, default: int) -> list[Wanted]:
    return [Wanted(attribute_number(table, name), code, default, inside) for name, code in codes.items()]


OF_SERVICES = StatisticsReader("SERVICE", IpvsServiceAttrList)
OF_DESTS = StatisticsReader("DEST", IpvsDestAttrList)
