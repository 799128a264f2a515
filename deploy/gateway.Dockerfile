# gateway: fixed ports on the host for services that have replicas. One file of the standard library.
#
# From the top of the repository: docker build -f deploy/gateway.Dockerfile .
ARG PYTHON_IMAGE=python:3.11-slim

FROM ${PYTHON_IMAGE}
RUN rm -rf /usr/local/lib/python3*/site-packages/* /usr/lib/python3/dist-packages/* /usr/local/lib/python3*/ensurepip \
      /usr/bin/pip* /usr/local/bin/pip*
WORKDIR /app
COPY LICENSE NOTICE deploy/healthcheck.py deploy/gateway.py ./
USER 10001:10001
EXPOSE 7701 7702 7703 7704
HEALTHCHECK --interval=5s --timeout=10s --start-period=60s --retries=5 \
  CMD ["python", "-I", "-S", "/app/healthcheck.py", "127.0.0.1:7701"]
ENTRYPOINT ["python", "-I", "-S", "/app/gateway.py"]
CMD ["7701=ingest:7701", "7702=decompose:7702", "7703=orchestrator:7703", "7704=simcluster:7704"]
