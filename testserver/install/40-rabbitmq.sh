#!/usr/bin/env bash
# RabbitMQ and the Erlang runtime it needs, as Debian packages them (3.10 on Debian 12: quorum queues, single active consumers).
. "$(dirname "$0")/lib.sh"

packages rabbitmq-server
