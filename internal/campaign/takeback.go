package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/artifactd/artifactd/internal/devstack"
)

// takeBack is a way in which a database loses its last decisions.
type takeBack string

const (
	promoted   takeBack = "lagging standby promoted"
	toAMoment  takeBack = "restored to a moment"
	copiedBack takeBack = "folder copied back"
)

var takeBacks = []takeBack{promoted, toAMoment, copiedBack}

// errUnwitnessed: nothing was decided after the copy was made, so there would be nothing to lose.
var errUnwitnessed = errors.New("nothing was decided meanwhile")

// former is a copy of the database as it was, ready to take its place.
type former struct {
	kind    takeBack
	data    string // folder
	restore string // of a restore to a moment, the name of that moment
	from    string // archive that it restores from
}

// past makes copies of a stack's database and puts them in its place, while everybody goes on.
type past struct {
	stack *stack
	rng   *rand.Rand
	n     int // copies made, which names their folders
}

func (p *past) between(low, high time.Duration) time.Duration {
	return low + time.Duration(p.rng.Int64N(int64(high-low)))
}

// folder names a new one.
func (p *past) folder(what string) string {
	p.n++
	return filepath.Join(p.stack.dir, fmt.Sprintf("%s-%d", what, p.n))
}

// copy copies the running database, and lets workers go on until the bucket bears witness of more
// than the copy has: what is taken back then is promised to be noticed.
func (p *past) copy(ctx context.Context, kind takeBack) (f former, err error) {
	f = former{kind: kind, data: p.folder("data"), from: p.stack.archive}
	args := []string{"--wal-method=stream"}
	if kind == promoted {
		args = append(args, "--write-recovery-conf")
	}
	if err := p.baseBackup(ctx, f.data, args...); err != nil {
		return f, err
	}
	switch kind {
	case promoted:
		err = p.follow(ctx, f.data)
	case toAMoment:
		time.Sleep(p.between(100*time.Millisecond, 1500*time.Millisecond))
		f.restore = fmt.Sprintf("moment%d", p.n)
		err = p.exec(ctx, `SELECT pg_create_restore_point('`+f.restore+`')`)
	}
	if err != nil {
		return f, err
	}
	reached, err := p.number(ctx, `SELECT sum(n)::bigint FROM artifactd.counter`)
	if err != nil {
		return f, err
	}
	time.Sleep(p.between(300*time.Millisecond, 2*time.Second))
	if kind == toAMoment {
		if err := p.archiveAll(ctx); err != nil {
			return f, err
		}
	}
	return f, p.awaitWitness(ctx, reached)
}

func (p *past) baseBackup(ctx context.Context, dir string, args ...string) error {
	pg := p.stack.postgres
	cmd := exec.CommandContext(ctx, filepath.Join(pg.BinDir(), "pg_basebackup"), append([]string{
		"--pgdata", filepath.Join(dir, "data"), "--checkpoint=fast", "--no-sync",
		"--dbname", "host=" + filepath.Dir(pg.Socket()) + " user=postgres"}, args...)...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("base backup: %w\n%s", err, out)
	}
	return nil
}

// follow has the copy follow as a standby for a while, and stops it: from then on it lags.
func (p *past) follow(ctx context.Context, dir string) error {
	o := p.stack.postgresOptions()
	o.DataDir, o.SocketDir = dir, filepath.Join(p.stack.dir, "standby")
	standby, err := devstack.StartPostgres(ctx, o)
	if err != nil {
		return err
	}
	time.Sleep(p.between(100*time.Millisecond, time.Second))
	return standby.Stop(ctx)
}

// archiveAll returns when everything that was written so far is in the archive.
func (p *past) archiveAll(ctx context.Context) error {
	conn, err := p.stack.owner(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.Background()) }() // has done its work
	var file string
	if err := conn.QueryRow(ctx, `SELECT pg_walfile_name(pg_switch_wal())`).Scan(&file); err != nil {
		return err
	}
	for done := false; !done; {
		if err := conn.QueryRow(ctx, `SELECT coalesce(last_archived_wal >= $1, false) FROM pg_stat_archiver`, file).Scan(&done); err != nil {
			return err
		}
		select {
		case <-time.After(settlePause):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// awaitWitness waits until the newest witness in the bucket tells of more decisions than these.
func (p *past) awaitWitness(ctx context.Context, reached int64) error {
	for deadline := time.Now().Add(quiesceTimeout); time.Now().Before(deadline); {
		var last string
		for o, err := range p.stack.store.List(ctx, keyPrefix+"witness/") {
			if err != nil {
				return err
			}
			last = o.Key
		}
		_, counter, _ := strings.Cut(last, "-")
		if n, err := strconv.ParseInt(counter, 10, 64); err == nil && n > reached {
			return nil
		}
		time.Sleep(settlePause)
	}
	return errUnwitnessed
}

// put kills the server and starts the copy in its place, at the same address.
func (p *past) put(ctx context.Context, f former) error {
	s := p.stack
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.postgres.Kill(); err != nil {
		return fmt.Errorf("kill Postgres: %w", err)
	}
	before := s.data
	s.data = f.data
	if err := s.newArchive(); err != nil {
		return err
	}
	o := s.postgresOptions()
	if f.kind == toAMoment {
		if err := os.WriteFile(filepath.Join(f.data, "data", "recovery.signal"), nil, 0o644); err != nil {
			return err
		}
		o.Settings["restore_command"] = "cp '" + f.from + "/%f' %p"
		o.Settings["recovery_target_name"], o.Settings["recovery_target_action"] = f.restore, "promote"
	}
	started, err := devstack.StartPostgres(ctx, o)
	if err != nil {
		return fmt.Errorf("start the %s: %w", f.kind, err)
	}
	s.postgres = started
	if f.kind == promoted {
		if err := p.exec(ctx, `SELECT pg_promote()`); err != nil {
			return err
		}
	}
	for recovering := int64(1); recovering != 0; time.Sleep(settlePause) {
		if recovering, err = p.number(ctx, `SELECT pg_is_in_recovery()::int`); err != nil {
			return err
		}
	}
	return errors.Join(os.RemoveAll(before), os.RemoveAll(f.from))
}

func (p *past) exec(ctx context.Context, sql string) error {
	conn, err := p.stack.owner(ctx)
	if err != nil {
		return err
	}
	_, err = conn.Exec(ctx, sql)
	return errors.Join(err, conn.Close(ctx))
}

func (p *past) number(ctx context.Context, sql string) (n int64, err error) {
	conn, err := p.stack.owner(ctx)
	if err != nil {
		return 0, err
	}
	err = conn.QueryRow(ctx, sql).Scan(&n)
	return n, errors.Join(err, conn.Close(ctx))
}
