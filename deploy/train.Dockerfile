# train: `adlro train`, which writes checkpoints of the learned policy for the orchestrator.
#
# From the top of the repository: docker build -f deploy/train.Dockerfile .
# torch comes as its CPU build. For CUDA: --build-arg TORCH_INDEX=https://download.pytorch.org/whl/cu128 (and give the
# container a GPU); with TORCH_INDEX= it comes from where all other packages do.
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
ARG PIP_FIND_LINKS
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
RUN grep -E '^torch==' /build/constraints.txt > /build/torch.txt \
 && python -m pip --python /venv/bin/python install --no-cache-dir --only-binary :all: \
      ${TORCH_INDEX:+--index-url ${TORCH_INDEX}} --no-deps -r /build/torch.txt
COPY deploy/requirements/train.txt deploy/prune.sh /build/
RUN python -m pip --python /venv/bin/python install --no-cache-dir --only-binary :all: \
      -c /build/constraints.txt -r /build/train.txt \
 && python -m pip --python /venv/bin/python check \
 && sh /build/prune.sh /venv
ENV PATH=/venv/bin:$PATH
WORKDIR /app
COPY adlro adlro
COPY services/__init__.py services/
COPY services/orchestrator services/orchestrator
RUN python -m compileall -q --invalidation-mode unchecked-hash adlro services
COPY LICENSE NOTICE ./

FROM ${PYTHON_IMAGE}
RUN rm -rf /usr/local/lib/python3*/site-packages/* /usr/lib/python3/dist-packages/* /usr/local/lib/python3*/ensurepip \
      /usr/bin/pip* /usr/local/bin/pip*
ENV PATH=/venv/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
WORKDIR /app
COPY --from=build /venv /venv
COPY --from=build /app /app
# A volume that is mounted here for the first time takes this owner over.
RUN mkdir /checkpoints && chown 10001:10001 /checkpoints
USER 10001:10001
ENV NUMBA_CACHE_DIR=/tmp/numba
ENTRYPOINT ["python", "-m", "adlro.cli", "train"]
CMD ["--help"]
