"""The rights that the chart gives to the daemon, put in force on a real API server as Helm renders them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tests.chart.cases import golden, objects
from tests.lab.apiserver import HOST, ControlPlane

NAMESPACE = "kube-system"
Rules = Sequence[Mapping[str, Any]]


class Right(NamedTuple):
    """One verb on one resource."""

    group: str
    resource: str
    verb: str

    def __str__(self) -> str:
        return f"{self.verb} {self.resource}"


def rules() -> Rules:
    """Those of the chart's ClusterRole."""
    (role,) = [item for item in objects(golden("defaults")) if item["kind"] == "ClusterRole"]
    return role["rules"]


def rights() -> Iterator[Right]:
    """Every single right in them."""
    for rule in rules():
        for group in rule["apiGroups"]:
            for resource in rule["resources"]:
                yield from (Right(group, resource, verb) for verb in rule["verbs"])


def without(lost: Right) -> Rules:
    """The rules, less this one right."""
    return [
        {"apiGroups": [right.group], "resources": [right.resource], "verbs": [right.verb]}
        for right in rights()
        if right != lost
    ]


def install(plane: ControlPlane) -> str:
    """Put the chart's ServiceAccount, ClusterRole and binding in force as they are rendered; the account's name."""
    kinds = ("ServiceAccount", "ClusterRole", "ClusterRoleBinding")
    made = [item for item in objects(golden("defaults")) if item["kind"] in kinds]
    assert len(made) == len(kinds)
    plane.apply(*made)
    return next(item["metadata"]["name"] for item in made if item["kind"] == "ServiceAccount")


def grant(plane: ControlPlane, account: str, given: Rules) -> None:
    """Make an account that has these rights alone."""
    about = {"apiVersion": "rbac.authorization.k8s.io/v1", "metadata": {"name": account}}
    subject = {"kind": "ServiceAccount", "name": account, "namespace": NAMESPACE}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": account}
    plane.apply(
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": account, "namespace": NAMESPACE}},
        {**about, "kind": "ClusterRole", "rules": given},
        {**about, "kind": "ClusterRoleBinding", "roleRef": role, "subjects": [subject]},
    )


def kubeconfig(plane: ControlPlane, path: Path, account: str, host: str = HOST) -> Path:
    """A kubeconfig with a token of this account, as its Pods have one, for who reaches the server at this host."""
    token = plane.kubectl("create", "token", account, f"--namespace={NAMESPACE}").strip()
    return plane.write_kubeconfig(path, {"token": token}, host)
