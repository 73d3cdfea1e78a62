#!/bin/bash
# Makes the data folder once, as the official image does: POSTGRES_USER, POSTGRES_PASSWORD or POSTGRES_PASSWORD_FILE,
# POSTGRES_DB, POSTGRES_INITDB_ARGS and PGDATA mean what they mean there.
set -euo pipefail

if [[ ${1:-} != postgres ]]; then exec "$@"; fi
user=${POSTGRES_USER:-postgres}
database=${POSTGRES_DB:-$user}

if [[ ! -s $PGDATA/PG_VERSION ]]; then
    password=${POSTGRES_PASSWORD:-}
    if [[ -n ${POSTGRES_PASSWORD_FILE:-} ]]; then password=$(<"$POSTGRES_PASSWORD_FILE"); fi
    if [[ -z $password ]]; then
        echo "postgres: set POSTGRES_PASSWORD or POSTGRES_PASSWORD_FILE" >&2
        exit 1
    fi
    mkdir -p "$PGDATA"
    chmod 700 "$PGDATA"
    # shellcheck disable=SC2086  # several options in one variable
    initdb --username "$user" --pwfile <(printf '%s\n' "$password") --auth-host scram-sha-256 --auth-local trust \
        --encoding UTF8 --locale C --no-instructions ${POSTGRES_INITDB_ARGS:-}
    printf 'host all all all scram-sha-256\n' >>"$PGDATA/pg_hba.conf"
    if [[ $database != postgres ]]; then
        printf 'CREATE DATABASE "%s";\n' "$database" | postgres --single -j -D "$PGDATA" postgres >/dev/null
    fi
fi
exec "$@" -c listen_addresses='*' -c unix_socket_directories=/var/run/postgresql
