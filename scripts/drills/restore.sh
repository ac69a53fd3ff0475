#!/bin/sh
# Drill: the database is restored from a base backup and its WAL archive to a moment, and what was
# published after that moment is brought back from the bucket.
. "$(dirname "$0")/lib.sh"

say "a server that archives its WAL"
folder "$work/archive"
new_server primary "archive_mode = on" "archive_command = 'test ! -f $work/archive/%f && cp %p $work/archive/%f'"
install_on primary
serve
until_true "writes are admitted" writes_go_on
expect 0 pointer create report
publish report "before the backup"

say "the backup, and what comes after it"
base_backup primary backup
publish report "after the backup"
kept=$(version_of report)
moment=$(sql primary "SELECT clock_timestamp()")
publish report "after the moment"
old_worker report
in_step
sql primary "SELECT pg_switch_wal()" >/dev/null
end_service
stop_server primary
saw "the server is gone; it is to be restored to $moment"

say "restore"
cp -a backup restored
as_postgres touch "$work/restored/data/recovery.signal"
start_server restored "archive_mode = off" "restore_command = 'cp $work/archive/%f %p'" \
	"recovery_target_time = '$moment'" "recovery_target_action = promote"
until_true "the restored server takes writes" takes_writes restored
expect 0 migrate --database-url "$(url postgres restored)"
ARTIFACTD_DATABASE_URL=$(url artifactd restored)
serve
shows report "after the backup"
[ "$(version_of report)" = "$kept" ] || fail "report shows $(version_of report) instead of $kept"
writes_wait

say "look, decide, go on"
lists_what_was_lost restored
expect 0 recover --yes
until_true "writes are admitted" writes_go_on
saw "the epoch is $(epoch)"
bring_back_all restored
shows report "after the moment"
old_worker_is_refused
publish report "after the restore"
shows report "after the restore"
