#!/bin/sh
# The distribution's Chromium for `make test-browser`.
#
#     sh tools/chromium.sh find       prints the path of the program; says what is missing
#     sh tools/chromium.sh install    for CI, as root on Debian: also installs it
#
# Changes the machine by `install` only. Exit code 1: no browser; the reason stands on stderr.
set -u

say() { echo "chromium: $*" >&2; }

find_browser() {
    for name in chromium chromium-browser google-chrome google-chrome-stable; do
        command -v "$name" && return
    done
    say "the tests of the page need Chromium or Chrome, and neither is on PATH"
    say "on Debian: sudo apt-get install chromium"
    return 1
}

install_browser() {
    find_browser >/dev/null 2>&1 && return
    [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null || { say "can install a browser as root on Debian only"; return 1; }
    apt-get update -qq >/dev/null && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends \
        chromium fonts-dejavu-core >/dev/null || { say "apt-get could not install chromium"; return 1; }
}

case ${1:-find} in
    find) find_browser ;;
    install) install_browser && find_browser ;;
    *) say "find or install"; exit 2 ;;
esac
