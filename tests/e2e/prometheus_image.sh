#!/bin/sh
# A stand-in for the image of Prometheus, for tests on a machine without an image registry: the binary of the Debian
# package `prometheus` and busybox, with the entry point, user, volume and port of the official image.
#
#   tests/e2e/prometheus_image.sh prom/prometheus:v3.5.0
#
# An image of that name that is there already is left alone. Needs docker, prometheus, promtool and busybox on PATH (the
# Debian packages docker.io, prometheus, busybox-static).
set -eu
tag=${1:?name the image to make, such as prom/prometheus:v3.5.0}
if docker image inspect "$tag" >/dev/null 2>&1; then
  echo "$tag is there already"
  exit 0
fi
for tool in prometheus promtool busybox; do
  command -v "$tool" >/dev/null || { echo "$0: $tool is not on PATH; its Debian package brings it" >&2; exit 1; }
done
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
mkdir -p "$root/bin" "$root/etc/prometheus" "$root/prometheus" "$root/tmp"
chmod 755 "$root"  # mktemp makes it for its owner alone, and it becomes /
chmod 1777 "$root/tmp"
cp -L "$(command -v busybox)" "$root/bin/busybox"
for applet in sh wget cat ls; do ln -s busybox "$root/bin/$applet"; done
for tool in prometheus promtool; do
  cp -L "$(command -v $tool)" "$root/bin/"
done
# Their libraries, at the places where the loader looks.
for binary in prometheus promtool busybox; do
  { ldd "$(command -v $binary)" 2>/dev/null || true; } | grep -oE '/[^ ]+' || true
done | sort -u | while read -r library; do
  mkdir -p "$root$(dirname "$library")"
  cp -L "$library" "$root$library"
done
printf 'root:x:0:0:root:/:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n' > "$root/etc/passwd"
# Go looks names up by itself, as the file says.
printf 'hosts: files dns\n' > "$root/etc/nsswitch.conf"
tar -C "$root" --owner=65534 --group=65534 --numeric-owner -c . | docker import \
  -c 'USER nobody' \
  -c 'WORKDIR /prometheus' \
  -c 'VOLUME /prometheus' \
  -c 'EXPOSE 9090' \
  -c 'ENTRYPOINT ["/bin/prometheus"]' \
  -c 'CMD ["--config.file=/etc/prometheus/prometheus.yml", "--storage.tsdb.path=/prometheus"]' \
  - "$tag" >/dev/null
echo "made $tag"
