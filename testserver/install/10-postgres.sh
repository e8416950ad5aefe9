#!/usr/bin/env bash
# PostgreSQL (Debian's version; 15 in Debian 12) and PgBouncer. Debian's own cluster is not started and not used: tests make
# their own with initdb from the package's versioned folder (/usr/lib/postgresql/<version>/bin).
source "$(dirname "$0")/lib.sh"
packages postgresql pgbouncer
