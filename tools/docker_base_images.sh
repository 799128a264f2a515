#!/bin/sh
# The base images of compose.yaml, for CI: pulled, or, where no image registry can be reached, stand-ins under the same
# names, made of Debian's packages. Called by tools/docker_engine.sh install: root, on Debian with Python 3.11 as its own
# (bookworm), with an engine that runs. An image that is there already is left alone.
#
#   python:3.11-slim   debootstrap, CPython 3.11, pip
#   redis:7-alpine     redis-server and busybox, with an entry point that takes the same arguments
set -eu
has() { docker image inspect "$1" >/dev/null 2>&1; }
get() { has "$1" || timeout 60 docker pull -q "$1" >/dev/null 2>&1; }

get python:3.11-slim && get redis:7-alpine && exit 0
grep -qs '^VERSION_CODENAME=bookworm' /etc/os-release || {
    echo "docker_base_images: no image registry can be reached, and stand-ins can be made on Debian bookworm only" >&2
    exit 1
}
DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends \
    debootstrap busybox-static redis-server redis-tools >/dev/null
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
certificates=/etc/ssl/certs/ca-certificates.crt

make_python() {
    root=$work/python
    sources=/etc/apt/sources.list.d/debian.sources
    mirror=$(sed -n 's/^URIs: *//p' "$sources" 2>/dev/null | head -n 1)
    debootstrap --variant=minbase \
        --include=python3.11-minimal,libpython3.11-stdlib,python3-pip,ca-certificates \
        bookworm "$root" ${mirror:+"$mirror"} >"$work/log" 2>&1 || { tail -n 20 "$work/log" >&2; return 1; }
    rm -rf "$root"/usr/lib/python3.11/EXTERNALLY-MANAGED "$root"/var/cache/apt/archives/*.deb \
        "$root"/var/lib/apt/lists/* "$root"/usr/share/doc/* "$root"/usr/share/man/* "$root"/usr/share/locale/*
    ln -sf python3.11 "$root/usr/bin/python3"
    ln -sf python3.11 "$root/usr/bin/python"
    # What this machine trusts, builds trust: it may reach its package index by way of a proxy with its own authority.
    cp "$certificates" "$root$certificates"
    printf '[global]\ncert = %s\nroot-user-action = ignore\n' "$certificates" >"$root/etc/pip.conf"
    tar -C "$root" --exclude='./dev/*' --exclude='./proc/*' --exclude='./sys/*' --numeric-owner -c . |
        docker import -c 'CMD ["python3"]' -c 'ENV LANG=C.UTF-8' \
            -c 'ENV PATH=/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin' - python:3.11-slim >/dev/null
}

make_redis() {
    root=$work/redis
    mkdir -p "$root/bin" "$root/usr/local/bin" "$root/data" "$root/tmp" "$root/etc"
    cp /bin/busybox "$root/bin/"
    for applet in sh ls cat sleep id env; do ln -s busybox "$root/bin/$applet"; done
    for program in redis-server redis-cli; do
        cp -L "$(command -v "$program")" "$root/usr/local/bin/"
        ldd "$(command -v "$program")" | grep -oE '/[^ ]+'
    done | sort -u | while read -r library; do
        mkdir -p "$root$(dirname "$library")"
        cp -L "$library" "$root$library"
    done
    printf 'root:x:0:0:root:/root:/bin/sh\nredis:x:999:1000:redis:/data:/bin/sh\n' >"$root/etc/passwd"
    chmod 755 "$root"
    chmod 1777 "$root/tmp"
    chown 999:1000 "$root/data"
    cat >"$root/usr/local/bin/docker-entrypoint.sh" <<'ENTRY'
#!/bin/sh
case "$1" in -* | *.conf) set -- redis-server "$@" ;; esac
if [ "$1" = redis-server ]; then exec "$@" --protected-mode no; fi
exec "$@"
ENTRY
    chmod +x "$root/usr/local/bin/docker-entrypoint.sh"
    tar -C "$root" -c . | docker import -c 'ENV PATH=/usr/local/bin:/bin' -c 'WORKDIR /data' -c 'VOLUME /data' \
        -c 'EXPOSE 6379' -c 'ENTRYPOINT ["docker-entrypoint.sh"]' -c 'CMD ["redis-server"]' - redis:7-alpine >/dev/null
}

has python:3.11-slim || make_python
has redis:7-alpine || make_redis
