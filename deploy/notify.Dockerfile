# notify: tells receivers of webhooks what happens.
#
# From the top of the repository: docker build -f deploy/notify.Dockerfile .
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
COPY deploy/requirements/notify.txt deploy/prune.sh /build/
RUN python -m pip --python /venv/bin/python install --no-cache-dir --only-binary :all: \
      -c /build/constraints.txt -r /build/notify.txt \
 && python -m pip --python /venv/bin/python check \
 && sh /build/prune.sh /venv
ENV PATH=/venv/bin:$PATH
WORKDIR /app
COPY adlro adlro
COPY services/__init__.py services/
COPY services/notify services/notify
RUN python -m compileall -q --invalidation-mode unchecked-hash adlro services
COPY LICENSE NOTICE deploy/healthcheck.py ./

FROM ${PYTHON_IMAGE}
RUN rm -rf /usr/local/lib/python3*/site-packages/* /usr/lib/python3/dist-packages/* /usr/local/lib/python3*/ensurepip \
      /usr/bin/pip* /usr/local/bin/pip*
ENV PATH=/venv/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
WORKDIR /app
COPY --from=build /venv /venv
COPY --from=build /app /app
USER 10001:10001
# Nobody calls it: it listens for its health check alone.
ENV ADLRO_NOTIFY_LISTEN=127.0.0.1:7706
HEALTHCHECK --interval=5s --timeout=10s --start-period=60s --retries=5 \
  CMD ["python", "-I", "-S", "/app/healthcheck.py", "127.0.0.1:7706", "notify"]
CMD ["python", "-m", "adlro.services.notify"]
