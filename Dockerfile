# The image of ipvsproxy. `make image` builds it where no image registry can be reached, on a base made of packages.
#
#   docker build --build-arg VERSION=X.Y.Z --tag ipvsproxy:X.Y.Z .

ARG BASE_IMAGE=debian:12-slim
# What the build stage starts from; it may have the compiler already.
ARG BUILD_IMAGE=${BASE_IMAGE}

# What the daemon calls, and no more: iptables of both flavours with their extension modules and libiptc, ipset for people
# who look, modprobe for the init container. The base may have it all already.
FROM ${BASE_IMAGE} AS runtime
ARG DEBIAN_FRONTEND=noninteractive
RUN packages="ca-certificates ipset iptables kmod libip4tc2 libip6tc2 libxtables12 python3"; \
    dpkg-query --show ${packages} >/dev/null 2>&1 || { \
        apt-get update -q && apt-get install -y -q --no-install-recommends ${packages} && rm -rf /var/lib/apt/lists/*; \
    }; \
    ldconfig

# gcc is for two dependencies that come as sources only. Whatever is fetched is built by a user who may nothing else.
FROM ${BUILD_IMAGE} AS build
ARG DEBIAN_FRONTEND=noninteractive
RUN packages="ca-certificates gcc libc6-dev python3-dev python3-venv"; \
    dpkg-query --show ${packages} >/dev/null 2>&1 || { \
        apt-get update -q && apt-get install -y -q --no-install-recommends ${packages}; \
    }; \
    install -d -o 65534 -g 65534 /opt/ipvsproxy /build
USER 65534:65534
ENV HOME=/build
WORKDIR /build
COPY --chown=65534:65534 requirements-build.txt requirements.txt ./
RUN python3 -m venv /opt/ipvsproxy \
    && /opt/ipvsproxy/bin/pip install --no-cache-dir --require-hashes -r requirements-build.txt \
    && /opt/ipvsproxy/bin/pip install --no-cache-dir --require-hashes --no-build-isolation --use-pep517 -r requirements.txt
COPY --chown=65534:65534 LICENSE README.md pyproject.toml ./
COPY --chown=65534:65534 ipvsproxy ipvsproxy
RUN /opt/ipvsproxy/bin/pip install --no-cache-dir --no-deps --no-build-isolation . \
    && /opt/ipvsproxy/bin/pip uninstall --yes --quiet setuptools pip
# Of the Kubernetes client the daemon imports configuration and transport: its asynchronous twin, 60 MB, goes, and its
# typed API gets no byte code, 22 MB. The rest has some that is never compared with its source, for the root file system
# is read-only. Some packages ship templates that are no Python, which compileall complains of.
RUN site=$(echo /opt/ipvsproxy/lib/python3*/site-packages); \
    rm -r "${site}/kubernetes/aio"; \
    find /opt/ipvsproxy -name __pycache__ -type d -prune -exec rm -r {} +; \
    python3 -m compileall -q -x 'kubernetes/client/(api|models)/' --invalidation-mode unchecked-hash "${site}" >/dev/null \
    || test -n "$(find "${site}/ipvsproxy" -name 'daemon.*.pyc')"

FROM runtime
ARG VERSION=0.0.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="ipvsproxy" \
      org.opencontainers.image.description="A Kubernetes Service proxy on Linux IPVS" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
COPY --from=build --chown=root:root /opt/ipvsproxy /opt/ipvsproxy
# Nothing is written at run time: the root file system is read-only there.
ENV PATH=/opt/ipvsproxy/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
# Nothing is missing: the libraries that are found by their names, and what is left of the Kubernetes client.
RUN python3 -c 'import ipvsproxy.daemon, ipvsproxy.kube.client, ipvsproxy.kube.event_recorder' && ipvsproxy --version
ENTRYPOINT ["ipvsproxy"]
