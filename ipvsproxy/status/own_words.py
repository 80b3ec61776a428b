"""Which words of `status` are options of ours: what decides whether ipvsadm's reading is left at all.

Apart from the options themselves, since every call asks and most ask for nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

_OWN = frozenset(
    {
        "--output", "--names", "--watch", "-N", "--namespace", "--service", "--address", "--draining", "--empty",
        "--not-ours", "--manifests", "--from-cluster", "--kubeconfig",
    }
)  # fmt: skip


def is_own(words: Sequence[str]) -> bool:
    """Whether one of the words is an option of ours; all of ipvsadm's are left to ipvsadm's reading."""
    for word, following in pairwise((*words, "-")):
        if word.partition("=")[0] in _OWN or (word.startswith(("-o", "-N")) and len(word) > len("-o")):
            return True
        if word == "-o" and not following.startswith("-"):  # ipvsadm's --ops has no value
            return True
    return False
