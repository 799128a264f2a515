#!/bin/sh
# Makes what compose.secure.yaml needs, in a directory of the host; what is there already stays:
#
#   docker compose -f compose.yaml -f compose.secure.yaml run --rm secrets
#
# A development authority with a certificate for each service (`adlro certs`), tokens, and Redis' password. Runs as root
# of a container that can do nothing but write there and give files away: what services read belongs to the user that
# they run as, and what people read to the owner of the directory.
set -eu
umask 077
cd "${1:?the directory}"
owner=$(stat -c %u:%g .)
adlro() { PYTHONPATH=/app python -m adlro.cli "$@"; }

[ -e ca.pem ] || adlro certs --out . >/dev/null
token() {  # FILE USER ROLE...
  [ -e "$1" ] && return
  file=$1 user=$2
  shift 2
  adlro token "$user" "$@" --users-file users --out "$file" >/dev/null
}
token service.token suite --role service
token workload.token workload --role operator  # its jobs have users of their own
token operator.token operator --role operator
token user.token "${2:-user}" --role submitter
[ -e redis.password ] || python -c 'import secrets; print(secrets.token_urlsafe(32))' > redis.password
printf 'requirepass %s\n' "$(cat redis.password)" > redis.conf

chmod 644 ./*.pem users
chown "$owner" ./* .
# The users of compose.yaml's containers. Nobody else may read a key or a token.
chown 10001:10001 ./*.key service.token workload.token redis.password users
chown "$owner" ca.key client.key
chown 999:1000 redis.conf
[ -e operator-suite.token ] || cp operator.token operator-suite.token
chown 10001:10001 operator-suite.token
echo "made, or there already: $(ls | tr '\n' ' ')"
echo "clients on this machine: ADLRO_TLS_CA_FILE=secrets/ca.pem ADLRO_TOKEN_FILE=secrets/user.token (or operator.token)"
