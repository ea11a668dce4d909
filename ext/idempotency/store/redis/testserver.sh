#!/usr/bin/env bash
# A private Redis server for the tests, on loopback, that loses nothing it
# acknowledged.
#
#	url=$(testserver.sh start DIR)	# DIR is made, and keeps the data
#	testserver.sh stop DIR
#
# start prints the URL for SEPCHECK_REDIS. The server is redis-server, or
# valkey-server where there is no Redis; REDIS_SERVER names another.
set -euo pipefail

usage() {
	echo "usage: $0 start|stop DIR" >&2
	exit 2
}

# alive reports whether the server of DIR runs.
alive() {
	[[ -s $dir/pid ]] && kill -0 "$(<"$dir/pid")" 2>/dev/null
}

start() {
	local server=${REDIS_SERVER:-$(command -v redis-server || command -v valkey-server || true)}
	if [[ -z $server ]]; then
		echo "$0: neither redis-server nor valkey-server is installed" >&2
		exit 1
	fi
	if alive; then
		echo "$0: a server runs in $dir already" >&2
		exit 1
	fi
	# The port is asked for until one is free: whoever listens first has it.
	local try port
	for try in {1..20}; do
		port=$((20000 + (RANDOM % 12000)))
		rm -f "$dir/pid" "$dir/log"
		"$server" --bind 127.0.0.1 --port "$port" --dir "$dir" --pidfile "$dir/pid" --logfile "$dir/log" \
			--daemonize yes --save '' --appendonly yes --appendfsync always \
			--maxmemory-policy noeviction >/dev/null
		if await; then
			echo "redis://127.0.0.1:$port/0"
			return
		fi
	done
	echo "$0: the server did not start; its log is $dir/log" >&2
	exit 1
}

# await returns once the server that was started last says that it is ready,
# and fails when it ends before.
await() {
	local i
	for i in {1..200}; do
		if grep -qs 'Ready to accept connections' "$dir/log" && alive; then
			return
		fi
		if grep -qs 'Failed listening\|bind: Address already in use' "$dir/log"; then
			return 1
		fi
		sleep 0.05
	done
	return 1
}

stop() {
	if ! alive; then
		return
	fi
	local pid i
	pid=$(<"$dir/pid")
	kill "$pid"
	for i in {1..200}; do
		kill -0 "$pid" 2>/dev/null || return 0
		sleep 0.05
	done
	kill -9 "$pid"
}

[[ $# -eq 2 ]] || usage
mkdir -p "$2"
dir=$(cd "$2" && pwd)
case $1 in
start | stop) "$1" ;;
*) usage ;;
esac
