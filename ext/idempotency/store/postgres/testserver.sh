#!/usr/bin/env bash
# Starts and stops a private PostgreSQL for tests, on a free port of loopback.
# As root it runs as the user postgres, since PostgreSQL refuses root.
#
#	testserver.sh start DIR [NAME=VALUE...]	makes a cluster in DIR, unless one
#		is there, starts it with the settings, and prints its URL
#	testserver.sh stop DIR [MODE]	stops it (fast, immediate; default fast)
#	testserver.sh copy URL DIR	makes DIR a copy of the cluster at URL, by
#		pg_basebackup, which start can start
#	testserver.sh bin	prints where PostgreSQL's programs are
#
# A cluster that is started again keeps its port.
set -euo pipefail

# bin prints the folder of the newest PostgreSQL's programs.
bin() {
	local dir
	dir=$(ls -d /usr/lib/postgresql/*/bin 2>/dev/null | sort -V | tail -n 1)
	if [[ -z $dir ]]; then
		dir=$(pg_config --bindir 2>/dev/null) || true
	fi
	if [[ ! -x $dir/initdb ]]; then
		echo "testserver.sh: no PostgreSQL server found (Debian: apt-get install postgresql)" >&2
		return 1
	fi
	echo "$dir"
}

# as runs a command as the user that PostgreSQL may run as.
as() {
	if [[ $(id -u) -eq 0 ]]; then
		(cd / && runuser -u postgres -- "$@")
	else
		"$@"
	fi
}

free_port() {
	local port
	for _ in {1..100}; do
		port=$((20000 + RANDOM % 12000))
		if ! (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then
			echo "$port"
			return
		fi
	done
	echo "testserver.sh: no free port" >&2
	return 1
}

# options turns NAME=VALUE... into what the server's command line takes.
options() {
	local o="-c listen_addresses=127.0.0.1 -c unix_socket_directories='' -c max_connections=300" setting
	for setting in "$@"; do
		o+=" -c $setting"
	done
	echo "$o"
}

start() {
	local dir=$1 programs
	shift
	programs=$(bin)
	mkdir -p "$dir"
	if [[ $(id -u) -eq 0 ]]; then
		chown postgres "$dir"
	fi
	dir=$(cd "$dir" && pwd)
	if [[ ! -f $dir/data/PG_VERSION ]]; then
		as "$programs/initdb" --pgdata="$dir/data" --username=postgres --auth=trust --encoding=UTF8 --locale=C >"$dir/initdb.log" 2>&1 ||
			{ cat "$dir/initdb.log" >&2; return 1; }
	fi
	local fixed="" try
	[[ -f $dir/port ]] && fixed=$(<"$dir/port")
	for try in {1..10}; do
		local port=${fixed:-$(free_port)}
		# The server outlives this script and must not keep its output open.
		if as "$programs/pg_ctl" --pgdata="$dir/data" --log="$dir/data/server.log" --wait --timeout=60 \
			--options="-p $port $(options "$@")" start </dev/null >/dev/null 2>&1; then
			echo "$port" >"$dir/port"
			echo "postgres://postgres@127.0.0.1:$port/postgres?sslmode=disable"
			return
		fi
		if [[ -n $fixed ]]; then
			break
		fi
	done
	tail -n 20 "$dir/data/server.log" >&2
	return 1
}

copy() {
	mkdir -p "$2"
	if [[ $(id -u) -eq 0 ]]; then
		chown postgres "$2"
	fi
	as "$(bin)/pg_basebackup" --dbname="$1" --pgdata="$(cd "$2" && pwd)/data" --wal-method=stream --checkpoint=fast
}

case ${1-} in
copy) copy "$2" "$3" ;;
start) start "${@:2}" ;;
stop) as "$(bin)/pg_ctl" --pgdata="$(cd "$2" && pwd)/data" --mode="${3-fast}" --wait stop >/dev/null ;;
bin) bin ;;
*)
	sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$0" >&2
	exit 2
	;;
esac
