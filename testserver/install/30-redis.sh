#!/usr/bin/env bash
# Redis, as Debian packages it (7.0 on Debian 12).
. "$(dirname "$0")/lib.sh"

packages redis-server
