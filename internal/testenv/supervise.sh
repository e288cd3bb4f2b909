# Runs one server, and ends it when whoever asked for it is gone.
#
#     sh -c "$(cat supervise.sh)" supervise DIRECTORY STOP COMMAND [ARGUMENT...]
#
# DIRECTORY  the server's data and log; removed at the end
# STOP       shell code that ends the process $server; repeated until it has ended
#
# stdin      a pipe. Its end means that the other side is gone, in whatever way: even a process
#            killed with SIGKILL closes its pipes. One line instead, sent after the server has
#            ended, means that another supervisor has taken the directory over.
# stdout     "started PID", and later "exited STATUS"
#
# It runs in a process group of its own, so that Ctrl-C in a terminal does not reach it.
directory=$1 stop=$2
shift 2

: >"$directory/server.log" # what a server before wrote does not say that this one is ready
exec 3<&0 # a background command would get /dev/null for stdin

"$@" </dev/null >>"$directory/server.log" 2>&1 3<&- &
server=$!

trap '' PIPE # the reader of our stdout may be gone before we are done
echo "started $server"

# STOP is repeated because a server that is just starting may not listen to signals yet.
(
    read -r _ <&3
    while kill -s 0 "$server"; do
        eval "$stop"
        sleep 0.1
    done
) >/dev/null 2>&1 &
watcher=$!

wait "$server"
status=$?
kill -s KILL "$watcher" 2>/dev/null # before the PID can belong to somebody else
echo "exited $status"

read -r _ <&3 && exit 0

# A Postgres that crashed leaves shared memory, with its id in this file. A next server in the directory would
# have removed it. Processes of the crashed one that are still attached keep it; it goes with the last of them.
segment=$(sed -n '7s/.* //p' "$directory/data/postmaster.pid" 2>/dev/null) && ipcrm -m "$segment"
rm -rf "$directory" || { sleep 1 && rm -rf "$directory"; }
