"""A Kubernetes Service proxy on Linux IPVS.

The path of a packet
====================
A client sends to a VIP, say 10.96.0.20:80. It is an address of the dummy link `kube-ipvs0`, so local to the node::

    from outside or a pod              from a process of the node
    nat PREROUTING  ─ KUBE-SERVICES    nat OUTPUT ─ KUBE-SERVICES      mark what needs source NAT (0x4000)
    filter INPUT    ─ KUBE-IPVS-FILTER                                 service ports and ping only
    IPVS at LOCAL_IN                   IPVS at LOCAL_OUT               pick a real server, rewrite destination
    nat POSTROUTING ─ KUBE-POSTROUTING                                 hairpin; marked: clear, MASQUERADE

What the rules decide by stands in ipsets; the rules themselves depend on the configuration alone and are written once
(modes/ipvs/rules.py, modes/ipvs/sets.py). Replies come back through conntrack (net.ipv4.vs.conntrack=1).

The path of a change
====================
One queue, and one thread that owns everything that changes; these files, top to bottom, are the program::

    kube/watch.py            a line from the API server → Changed(EndpointSlice)        thread "watch-EndpointSlice"
    kube/manifests.py        or a file of the folder has changed                        thread "manifests"
                             → one queue (daemon.QueueInbox)                            the only hand-over
    sync/runner.py           wake at once; not before the minimum period has passed     main thread from here on
    cluster/tracker.py       note(event): compact it; an undone change vanishes
    sync/reconciler.py       take() → the touched Services; joins all that follows
    modes/ipvs/service.py    plan those only: virtual servers, real servers, addresses, set entries
    plan/desired.py          who wants which object; what this plan touches
    sync/lingering.py        what is wanted for now: connections may keep what nobody wants any more
    plan/diff.py             wanted minus applied = operations                          none? then nothing is sent
    plan/order.py            make before break; never accepted without a virtual server
    sync/applier.py          what may go now, phase by phase
    kernel/ipvs.py …         operations → packed messages → kernel/netlink.py           one send for up to 200
    sync/applier.py          acknowledged → mirror; refused → retried with back-off
    sync/flows.py            UDP flows that now lead elsewhere are ended                none? then nothing is read
    serve/node_port_server.py   and load balancers hear how many endpoints are here    thread "health-check-ports"
    serve/page_server.py     and probes and scrapes what became of it                   threads "healthz", "metrics"
    status_server.py         and root on the node, who asks, what is known by then      thread "status"

The kernel is read (sync/mirror.py) at start, where another run's state is adopted, where an answer was lost, and by the
audits; a sync does not read it, but for connection tracking where it has redirected UDP clients.

Three kinds of code
===================
*Pure* (model, cluster, config, plan, modes, status, inspect): data in, data out. *Edge* (kube, kernel): one outside
thing each, behind a Protocol, with a fake that passes the same contract tests; an edge too is serve, which answers from
what the sync thread publishes. *Shell* (sync, daemon, dry_run, first_sync, cli): joins them.
Imports point from shell to edge to pure only; import-linter holds them to it.
"""

__version__ = "0.1.0"
