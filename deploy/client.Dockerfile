# client: the command `adlro`, for clusters that run elsewhere: it holds no service.
#
# From the top of the repository: docker build -f deploy/client.Dockerfile .
# The first lines of both stages are the same for all services: the engine makes those layers once.
ARG PYTHON_IMAGE=python:3.11-slim

FROM ${PYTHON_IMAGE} AS build
# A package index of one's own, where there is one.
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
ARG PIP_TRUSTED_HOST
COPY constraints.txt deploy/requirements/kit.txt /build/
RUN python -m venv --without-pip /venv \
 && python -m pip --python /venv/bin/python install --no-cache-dir --only-binary :all: \
      -c /build/constraints.txt -r /build/kit.txt
COPY deploy/requirements/client.txt deploy/prune.sh /build/
RUN python -m pip --python /venv/bin/python install --no-cache-dir --only-binary :all: \
      -c /build/constraints.txt -r /build/client.txt \
 && python -m pip --python /venv/bin/python check \
 && sh /build/prune.sh /venv
# What the command does not read: numpy's tools for building, PyYAML's second parser, tables of languages in no help text,
# and the servers' event loop (uvloop), which is in the layer that all images share.
RUN find /venv -type d \( -path '*/numpy/f2py' -o -path '*/numpy/distutils' -o -path '*/site-packages/uvloop' \
      -o -path '*/site-packages/uvloop-*.dist-info' \) -prune -exec rm -rf {} + \
 && find /venv -type f \( -path '*/yaml/_yaml*.so' -o -path '*/pygments/lexers/_*_builtins.py' \) -delete
ENV PATH=/venv/bin:$PATH
WORKDIR /app
COPY adlro adlro
RUN python -m compileall -q --invalidation-mode unchecked-hash adlro
COPY LICENSE NOTICE deploy/make_secrets.sh ./

FROM ${PYTHON_IMAGE}
RUN rm -rf /usr/local/lib/python3*/site-packages/* /usr/lib/python3/dist-packages/* /usr/local/lib/python3*/ensurepip \
      /usr/bin/pip* /usr/local/bin/pip*
ENV PATH=/venv/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
WORKDIR /app
COPY --from=build /venv /venv
COPY --from=build /app /app
USER 10001:10001
ENV ADLRO_SERVER=ingest:7701 ADLRO_DECOMPOSE_SERVER=decompose:7702 \
    ADLRO_ORCHESTRATOR_SERVER=orchestrator:7703 ADLRO_CLUSTER_SERVER=simcluster:7704
ENTRYPOINT ["python", "-m", "adlro.cli"]
CMD ["--help"]
