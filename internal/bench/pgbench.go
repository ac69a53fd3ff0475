package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/jackc/pgx/v5"

	"github.com/artifactd/artifactd/internal/devstack"
)

// The peer of commit has a database of its own on the same server, with one row a client.
const (
	peerDatabase = "bench_peer"
	peerTableSQL = `DROP TABLE IF EXISTS pointer;
		CREATE TABLE pointer (
			name text PRIMARY KEY, generation bigint NOT NULL, lease_id uuid, lease_expires_at timestamptz, current bigint
		) WITH (fillfactor = 50)`
	peerRowsSQL  = `INSERT INTO pointer SELECT 'bench.peer.' || i, 0 FROM generate_series(0, $1 - 1) i`
	peerTotalSQL = `SELECT coalesce(sum(current), 0)::bigint FROM pointer`
	// peerScript is one operation: two transactions, of one statement each.
	peerScript = `UPDATE pointer SET generation = generation + 1, lease_id = gen_random_uuid(), lease_expires_at = clock_timestamp() + interval '1 minute' WHERE name = 'bench.peer.' || :client_id AND lease_id IS NULL;
UPDATE pointer SET current = generation, lease_id = NULL, lease_expires_at = NULL WHERE name = 'bench.peer.' || :client_id AND lease_id IS NOT NULL;
`
)

// pgbench is the peer of commit.
type pgbench struct {
	program string
	url     string
	clients int
	dir     string // of its script and logs
}

func preparePgbench(ctx context.Context, s *stack, clients int) (side, error) {
	program, err := findPgbench(s.postgres)
	if err != nil {
		return nil, err
	}
	if err := s.postgres.CreateDatabase(ctx, peerDatabase); err != nil {
		return nil, err
	}
	p := &pgbench{program: program, url: s.postgres.URL(peerDatabase), clients: clients}
	if p.dir, err = os.MkdirTemp(s.dir, "pgbench-"); err != nil {
		return nil, err
	}
	if err := os.WriteFile(p.script(), []byte(peerScript), 0o600); err != nil {
		return nil, err
	}
	return p.run, p.connected(ctx, func(conn *pgx.Conn) error {
		if _, err := conn.Exec(ctx, peerTableSQL); err != nil {
			return err
		}
		_, err := conn.Exec(ctx, peerRowsSQL, clients)
		return err
	})
}

func (p *pgbench) script() string { return filepath.Join(p.dir, "cycle.sql") }

func (p *pgbench) connected(ctx context.Context, f func(*pgx.Conn) error) (err error) {
	conn, err := pgx.Connect(ctx, p.url)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close(ctx)) }()
	return f(conn)
}

func (p *pgbench) total(ctx context.Context) (n int64, err error) {
	return n, p.connected(ctx, func(conn *pgx.Conn) error { return conn.QueryRow(ctx, peerTotalSQL).Scan(&n) })
}

// findPgbench looks beside the postgres program that runs, whose path the server keeps in its
// folder.
func findPgbench(pg *devstack.Postgres) (string, error) {
	started, err := os.ReadFile(filepath.Join(pg.ClusterDir(), "postmaster.opts"))
	if err != nil {
		return "", err
	}
	server, _, _ := strings.Cut(string(started), ` "`)
	program := filepath.Join(filepath.Dir(strings.TrimSpace(server)), "pgbench")
	if _, err := os.Stat(program); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return "", fmt.Errorf("%s is missing: install it (`apt-get install postgresql-contrib` on Debian or Ubuntu, "+
				"`dnf install postgresql-contrib` on Fedora), or leave this benchmark out with -only", program)
		}
		return "", err
	}
	return program, nil
}

// pgbenchTries bounds how often a round is repeated, each time for twice as long, in which a busy
// machine did not get pgbench past making its connections.
const pgbenchTries = 4

// run measures for d, rounded up to whole seconds: pgbench knows no shorter time.
func (p *pgbench) run(ctx context.Context, d time.Duration) (sample, error) {
	before, err := p.total(ctx)
	if err != nil {
		return sample{}, err
	}
	logs, err := os.MkdirTemp(p.dir, "round-")
	if err != nil {
		return sample{}, err
	}
	var said string
	seconds := int(math.Ceil(d.Seconds()))
	for range pgbenchTries {
		if said, err = p.execute(ctx, seconds, logs); err != nil {
			return sample{}, err
		}
		if !strings.Contains(said, "actually processed: 0\n") {
			break
		}
		seconds *= 2
	}
	s, err := readRound(said, logs)
	if err != nil {
		return s, err
	}
	after, err := p.total(ctx)
	if err == nil && after-before != s.operations {
		err = fmt.Errorf("pgbench logged %d cycles and %d are in the table", s.operations, after-before)
	}
	return s, err
}

// execute runs pgbench once and returns what it said.
func (p *pgbench) execute(ctx context.Context, seconds int, logs string) (string, error) {
	cmd := exec.CommandContext(ctx, p.program, "--no-vacuum", "--protocol=prepared", "--file="+p.script(),
		"--client="+strconv.Itoa(p.clients), "--jobs="+strconv.Itoa(min(runtime.NumCPU(), p.clients)),
		"--time="+strconv.Itoa(seconds), "--log", "--log-prefix="+filepath.Join(logs, "log"), p.url)
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("pgbench: %w; it said:\n%s", err, said.Bytes())
	}
	return said.String(), nil
}

// rateLine is pgbench's own count of transactions a second; it leaves out the time that the
// connections took to be made, as our side's warm-up does.
var rateLine = regexp.MustCompile(`(?m)^tps = ([0-9.]+) \(without initial connection time\)$`)

// readRound makes a sample of what pgbench printed and of the logs in a folder.
func readRound(said, logs string) (sample, error) {
	s := sample{latency: newHistogram()}
	files, err := filepath.Glob(filepath.Join(logs, "log.*"))
	if err != nil {
		return s, err
	}
	for _, name := range files {
		f, err := os.Open(name)
		if err != nil {
			return s, err
		}
		err = readLog(f, s.latency)
		if err := errors.Join(err, f.Close()); err != nil {
			return s, fmt.Errorf("pgbench's log: %w", err)
		}
	}
	s.operations = s.latency.TotalCount()
	m := rateLine.FindStringSubmatch(said)
	if m == nil {
		return s, fmt.Errorf("pgbench did not print its rate; it said:\n%s", said)
	}
	rate, err := strconv.ParseFloat(m[1], 64)
	if err != nil || rate <= 0 || s.operations == 0 {
		return s, fmt.Errorf("pgbench did nothing (%d cycles logged); it said:\n%s", s.operations, said)
	}
	s.elapsed = time.Duration(float64(s.operations) / rate * float64(time.Second))
	return s, nil
}

// readLog records the latencies of a pgbench log: client, transaction, microseconds, and more.
func readLog(r io.Reader, h *hdrhistogram.Histogram) error {
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) < 3 {
			return fmt.Errorf("unexpected line %q", lines.Text())
		}
		micros, err := strconv.ParseInt(fields[2], 10, 64)
		if err != nil {
			return fmt.Errorf("unexpected line %q: %w", lines.Text(), err)
		}
		if err := h.RecordValue(micros); err != nil {
			return err
		}
	}
	return lines.Err()
}
