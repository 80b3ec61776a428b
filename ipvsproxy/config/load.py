"""A KubeProxyConfiguration file: bytes in, the document out; and the document as a file again.

Decoding is strict first, as upstream's: unknown and duplicate fields are what strictness finds. Both are dropped (of a
duplicate the last value counts) and named, for a file may be written for another release; all else ends the start.
Text is read as JSON where it is JSON, else as YAML 1.1, as Kubernetes reads its own files (`yes` is true).
Reading costs what the text is long, whatever its aliases.

Source: kubernetes v1.37.2 cmd/kube-proxy/app/options.go loadConfig.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import partial
from itertools import chain
from typing import Final, NamedTuple

import msgspec
import yaml

from ipvsproxy.config.document import (
    Document,
    apply_defaults,
    decode,
    not_finite,
    undecodable,
    unknown_fields,
    without_nulls,
)
from ipvsproxy.config.field_errors import quoted
from ipvsproxy.config.types import DetectLocalMode, KubeProxyConfiguration, OwnConfiguration, ProxyMode
from ipvsproxy.errors import ConfigError

API_VERSION = "kubeproxy.config.k8s.io/v1alpha1"
KIND = "KubeProxyConfiguration"
_MAX_EXPANSION = 10  # what aliases may make of a text, in multiples of it
_ALWAYS_ALLOWED = 10_000  # nodes: nothing that takes noticeable time
_DUMPER: Final = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


class LoadedFile(NamedTuple):
    """What a file says, defaults included where they depend on other fields; and what strictness objects to."""

    document: Document
    unknown: tuple[str, ...]  # paths of fields
    duplicate: tuple[str, ...]  # "mode (line 7)"


def load(name: str, data: bytes) -> LoadedFile:
    """Read a file; `name` is for messages. Raises ConfigError."""
    document, duplicates = _parse(name, data)
    if not isinstance(document, dict):
        raise undecodable(name, "it holds no mapping of fields")
    _check_kind(name, document)
    try:
        cleaned: Document = without_nulls(document)
        unusable = "; ".join(not_finite(cleaned))
    except RecursionError as error:
        raise undecodable(name, "it is nested hundreds of levels deep") from error
    if unusable:
        raise undecodable(name, unusable)
    apply_defaults(cleaned)
    decode(name, cleaned)
    return LoadedFile(cleaned, tuple(unknown_fields(cleaned)), tuple(duplicates))


def render(written: KubeProxyConfiguration) -> str:
    """The YAML text that loads to `written`, mode and detectLocalMode filled in. Raises ConfigError where none does.

    Our own section is left out where it says nothing, so that kube-proxy can read the file without a warning.
    """
    filled = msgspec.structs.replace(
        written,
        mode=written.mode or ProxyMode.IPVS.value,
        detect_local_mode=written.detect_local_mode or DetectLocalMode.CLUSTER_CIDR.value,
    )
    document = {"apiVersion": API_VERSION, "kind": KIND} | msgspec.to_builtins(filled)
    if filled.ipvsproxy == OwnConfiguration():
        del document["ipvsproxy"]
    try:
        text: str = yaml.dump(document, Dumper=_DUMPER, allow_unicode=True, width=1000)
        data = text.encode()
    except UnicodeEncodeError as error:
        raise ConfigError("--write-config-to", "a value is no UTF-8 text, which a file cannot say") from error
    _check_round_trip(filled, decode("what was written", load("what was written", data).document))
    return text


def _check_round_trip(written: KubeProxyConfiguration, read: KubeProxyConfiguration) -> None:
    """A blank healthzBindAddress or metricsBindAddress is one that only a flag can say."""
    meant, got = msgspec.to_builtins(written), msgspec.to_builtins(read)
    for field, value in meant.items():
        if value != got[field]:
            why = f"a file cannot say {field}: {quoted(str(value))}; it would be read as {quoted(str(got[field]))}"
            raise ConfigError("--write-config-to", why, "Leave the flag that says so out")


def _parse(name: str, data: bytes) -> tuple[object, list[str]]:
    """Plain values, and the keys that stand twice in a mapping. Raises ConfigError."""
    duplicates: list[str] = []
    if data.lstrip().startswith(b"{"):
        with suppress(ValueError, RecursionError):  # it may be YAML that begins like JSON
            return json.loads(data, object_pairs_hook=partial(_mapping, duplicates)), duplicates
        duplicates.clear()
    try:
        loader = _YamlLoader(data)
        try:
            node = loader.get_node() if loader.check_node() else None
            _check_aliases(name, node)
            duplicates += _duplicates(node)
            return loader.construct_document(node) if node is not None else None, duplicates
        finally:
            loader.dispose()
    except (yaml.YAMLError, RecursionError, ValueError) as error:  # ValueError: a number of thousands of digits
        raise undecodable(name, " ".join(str(error).split())) from error


def _mapping(duplicates: list[str], pairs: list[tuple[str, object]]) -> dict[str, object]:
    mapping: dict[str, object] = {}
    for key, value in pairs:
        if key in mapping:
            duplicates.append(key)
        mapping[key] = value
    return mapping


class _YamlLoader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]  # chosen at run time
    """Dates stay text, as JSON has none."""

    yaml_implicit_resolvers: Final = {
        first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith(":timestamp")]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


def _check_aliases(name: str, node: yaml.Node | None) -> None:
    """Refuse a text that means far more than it says: ten lines can mean 10^12 values. Raises ConfigError."""
    written, meant = _sizes(node)
    if meant > max(_ALWAYS_ALLOWED, _MAX_EXPANSION * written):
        raise undecodable(name, "its aliases (*) stand for far more than the text holds", "Write it without them")


def _sizes(root: yaml.Node | None) -> tuple[int, float]:
    """How many nodes the text has; and how many with a copy for each alias, without end where one holds itself."""
    sizes: dict[int, float] = {}
    stack = [(root, False)]
    while stack:
        node, children_are_known = stack.pop()
        if children_are_known:
            sizes[id(node)] = 1.0 + sum(sizes[id(child)] for child in _children(node))
        elif id(node) not in sizes:
            sizes[id(node)] = math.inf  # who asks before it is known is inside of it
            stack.append((node, True))
            stack += ((child, False) for child in _children(node))
    return len(sizes), sizes[id(root)]


def _children(node: yaml.Node | None) -> Iterable[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        return chain.from_iterable(node.value)
    return node.value if isinstance(node, yaml.SequenceNode) else ()


def _duplicates(node: yaml.Node | None) -> Iterator[str]:
    """Keys that stand twice; aliases are followed once, so that they cost what the text is long."""
    seen, stack = set(), [node]
    while stack:
        current = stack.pop()
        if id(current) in seen:
            continue
        seen.add(id(current))
        if isinstance(current, yaml.MappingNode):
            keys: set[str] = set()
            for key, value in current.value:
                stack.append(value)
                if isinstance(key, yaml.ScalarNode):
                    if key.value in keys:
                        yield f"{key.value} (line {key.start_mark.line + 1})"
                    keys.add(key.value)
        elif isinstance(current, yaml.SequenceNode):
            stack.extend(current.value)


def _check_kind(name: str, document: Document) -> None:
    for field, wanted in (("apiVersion", API_VERSION), ("kind", KIND)):
        if document.get(field) != wanted:
            found = f"{field} is {quoted(str(document[field]))}" if document.get(field) else f"{field} is missing"
            raise undecodable(name, found, f"Write {field}: {wanted}")
