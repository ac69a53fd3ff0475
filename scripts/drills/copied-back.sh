#!/bin/sh
# Drill: the server's data folder is copied back, or a snapshot of its volume restored. Neither timeline
# nor system identifier changes: only the bucket's witness tells.
. "$(dirname "$0")/lib.sh"

say "a server, and a copy of its folder while it is stopped"
new_server primary
install_on primary
serve
until_true "writes are admitted" writes_go_on
expect 0 pointer create report
publish report "in the copy"
kept=$(version_of report)
stop_server primary
cp -a primary/data copy
start_server primary
until_true "writes are admitted after the restart" writes_go_on
saw "a restart alone changes nothing: the epoch is $(epoch)"
publish report "after the copy"
old_worker report
in_step
identity=$(sql primary "SELECT system_identifier FROM pg_control_system()")

say "the folder is copied back"
stop_server primary
rm -rf primary/data
cp -a copy primary/data
start_server primary
[ "$(sql primary "SELECT system_identifier FROM pg_control_system()")" = "$identity" ] || fail "this is another server"
shows report "in the copy"
[ "$(version_of report)" = "$kept" ] || fail "report shows $(version_of report) instead of $kept"
writes_wait

say "look, decide, go on"
lists_what_was_lost primary
expect 0 recover --yes
until_true "writes are admitted" writes_go_on
bring_back_all primary
shows report "after the copy"
old_worker_is_refused
