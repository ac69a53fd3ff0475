package pointer

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/artifactd/artifactd/internal/devstack"
	"github.com/artifactd/artifactd/internal/testenv"
)

func TestChecksBeforeServing(t *testing.T) {
	t.Parallel()
	pg := testenv.Postgres(t, devstack.PostgresOptions{DataDir: t.TempDir()})
	db := testenv.DatabaseOn(t, pg)
	open := func(url string, settings map[string]string) *Catalogue {
		cfg, err := PoolConfig(url)
		if err != nil {
			t.Fatal(err)
		}
		for k, v := range settings {
			cfg.ConnConfig.RuntimeParams[k] = v
		}
		pool, err := pgxpool.NewWithConfig(context.Background(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(pool.Close)
		c, err := New(pool, Options{})
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	sound := open(db.ServiceURL, nil)
	if err := errors.Join(sound.CheckDurability(t.Context()), sound.CheckRole(t.Context())); err != nil {
		t.Errorf("a sound server: %v", err)
	}
	err := open(db.ServiceURL, map[string]string{"synchronous_commit": "off"}).CheckDurability(t.Context())
	if err == nil || !strings.Contains(err.Error(), "synchronous_commit=off") {
		t.Errorf("synchronous_commit off: %v", err)
	}
	err = open(db.URL, nil).CheckRole(t.Context())
	if err == nil || !strings.Contains(err.Error(), "past the fence") {
		t.Errorf("as the owner: %v", err)
	}
}

// D5: whatever the service's role tries, it only gets what the functions decide.
func TestScheduleD5ServiceRoleCannotBypassTheFence(t *testing.T) {
	w := newWorld(t)
	w.pointer("p")
	a := w.worker()
	l := w.ready(a, "p", "A")
	conn := w.db.ConnectService(t)
	denied := []string{
		`UPDATE artifactd.pointer SET generation = 99`,
		`DELETE FROM artifactd.generation`,
		`INSERT INTO artifactd.operation (operation_id, kind, pointers, generation_ids) VALUES (gen_random_uuid(), 'publish', '{}', '{}')`,
		`TRUNCATE artifactd.pointer`,
		`ALTER TABLE artifactd.pointer DISABLE TRIGGER ALL`,
		`CREATE TABLE artifactd.x ()`,
		`SELECT artifactd.flip(1, '` + l.ID.String() + `', now(), 1)`,
		`SELECT artifactd.end_lease('` + l.ID.String() + `', 'expired', now())`,
		`SELECT artifactd.bury_artifacts('{}', 'x', 0)`,
	}
	for _, sql := range denied {
		if _, err := conn.Exec(t.Context(), sql); err == nil {
			t.Errorf("the service's role may %s", sql)
		}
	}
	// A temporary table and a hostile search_path do not shadow what the functions use.
	if _, err := conn.Exec(t.Context(), `CREATE TEMP TABLE pointer AS SELECT * FROM artifactd.pointer;
		CREATE TEMP TABLE generation AS SELECT * FROM artifactd.generation;
		UPDATE pg_temp.pointer SET lease_expires_at = now() + interval '1 year';
		SET search_path = pg_temp, public, artifactd`); err != nil {
		t.Fatal(err)
	}
	w.expire("p")
	args, err := publishArgs(new(publish(l)))
	if err != nil {
		t.Fatal(err)
	}
	var status string
	var answer []byte
	if err := conn.QueryRow(t.Context(), publishSQL, append(args, false, InlineSealFiles)...).Scan(&status, &answer); err != nil || status != "refused" {
		t.Errorf("with shadowing tables: %s, %v", status, err)
	}
	w.shows("p", "")
}

// The guards hold the owner's own scripts.
func TestGuardsHoldTheOwner(t *testing.T) {
	w := newWorld(t)
	w.pointer("p")
	a := w.worker()
	one := w.ready(a, "p", "A")
	w.published(a, one)
	dead := w.ready(a, "p", "B")
	if err := a.Release(t.Context(), dead.ID); err != nil {
		t.Fatal(err)
	}
	for name, sql := range map[string]string{
		"lower a token":            `UPDATE artifactd.pointer SET generation = generation - 1`,
		"lower an epoch":           `UPDATE artifactd.pointer SET epoch = 0`,
		"delete a pointer":         `DELETE FROM artifactd.pointer`,
		"truncate pointers":        `TRUNCATE artifactd.pointer CASCADE`,
		"rename a pointer":         `UPDATE artifactd.pointer SET name = 'q'`,
		"show a dead generation":   `UPDATE artifactd.pointer SET current_id = '` + dead.ID.String() + `', current_generation = 2`,
		"show an old generation":   `UPDATE artifactd.pointer SET current_id = '` + one.ID.String() + `', current_generation = 2`,
		"relabel what is shown":    `UPDATE artifactd.pointer SET current_generation = 2`,
		"insert with a token":      `INSERT INTO artifactd.pointer (name, generation) VALUES ('x', 7)`,
		"revive a dead generation": `UPDATE artifactd.generation SET state = 'leased', ended_at = NULL WHERE generation_id = '` + dead.ID.String() + `'`,
		"publish a dead one":       `UPDATE artifactd.generation SET state = 'published', published_at = now() WHERE generation_id = '` + dead.ID.String() + `'`,
		"delete a generation":      `DELETE FROM artifactd.generation`,
		"renumber a generation":    `UPDATE artifactd.generation SET generation = generation + 10`,
		"change a published one":   `UPDATE artifactd.generation SET file_count = 7 WHERE state = 'published'`,
		"truncate generations":     `TRUNCATE artifactd.generation CASCADE`,
	} {
		if _, err := w.owner.Exec(t.Context(), sql); err == nil {
			t.Errorf("the owner's script may %s", name)
		}
	}
	w.shows("p", "1.1")
}
