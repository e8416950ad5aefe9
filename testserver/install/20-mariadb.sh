#!/usr/bin/env bash
# MariaDB as Debian packages it (10.11 on Debian 12).
. "$(dirname "$0")/lib.sh"

packages mariadb-server
