package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/artifactd/artifactd/gc"
	"github.com/artifactd/artifactd/internal/daemon"
	"github.com/artifactd/artifactd/pointer"
)

// auditSQL notes every key that is ever to be deleted, as the owner, who is not asked for leave.
const auditSQL = `CREATE SCHEMA campaign;
	CREATE TABLE campaign.buried (object_key text, reason text);
	CREATE FUNCTION campaign.note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
		INSERT INTO campaign.buried VALUES (NEW.object_key, NEW.reason); RETURN NULL; END $$;
	CREATE TRIGGER campaign AFTER INSERT ON artifactd.deletion FOR EACH ROW EXECUTE FUNCTION campaign.note();
	GRANT USAGE ON SCHEMA campaign TO PUBLIC; GRANT INSERT ON campaign.buried TO PUBLIC;
`

// uploadTTL is the shortest life of an upload URL that the service can be told. A deleted key waits
// in the ledger for as long.
const uploadTTL = time.Minute

// collection is what the collector and the reconciler did, for the report.
type collection struct {
	buried   map[string]int // keys that went into the deletion ledger, by reason
	kept     int            // versions of the shelves at the end, each read back whole
	objects  int            // in the bucket at the end
	verified int64          // stored artifacts, read back and hashed at the end
	took     time.Duration  // until nothing was left over
}

const (
	// dueSQL is what is still to be done: keys to delete, unknown objects to settle, records to write.
	dueSQL = `SELECT (SELECT count(*) FROM artifactd.deletion), (SELECT count(*) FROM artifactd.orphan WHERE quarantine IS NULL),
		(SELECT count(*) FROM artifactd.outbox)`
	// garbageSQL is every generation that is there and has no reason to be, once retention and graces
	// are over.
	garbageSQL = `SELECT p.name || ' ' || g.epoch || '.' || g.generation || ' ' || g.state
		FROM artifactd.generation g JOIN artifactd.pointer p USING (pointer_id)
		WHERE g.collected_at IS NULL AND NOT (g.state = 'published' AND (g.generation_id IS NOT DISTINCT FROM p.current_id OR g.pinned
			OR (SELECT count(*) FROM artifactd.generation h WHERE h.pointer_id = g.pointer_id AND h.displaced_at IS NOT NULL
			       AND (h.epoch, h.generation) > (g.epoch, g.generation)) < p.keep_versions))`
	// tooManySQL is every version that was collected although it had to be kept, then or now.
	tooManySQL = `SELECT p.name || ' ' || g.epoch || '.' || g.generation
		FROM artifactd.generation g JOIN artifactd.pointer p USING (pointer_id)
		WHERE g.state = 'published' AND g.collecting_at IS NOT NULL AND (g.displaced_at IS NULL OR g.pinned
			OR g.collecting_at < g.displaced_at + make_interval(secs => p.keep_seconds)
			OR (SELECT count(*) FROM artifactd.generation h WHERE h.pointer_id = g.pointer_id AND h.displaced_at <= g.collecting_at
			       AND (h.epoch, h.generation) > (g.epoch, g.generation)) < p.keep_versions)`
	// keysSQL are the keys that the catalogue knows: of artifacts, and of records of versions.
	keysSQL = `SELECT i.key_prefix || 'artifacts/' || encode(a.digest, 'hex') || '/' || a.artifact_id, a.stored_at IS NOT NULL
			FROM artifactd.artifact a, artifactd.installation i
		UNION ALL
		SELECT artifactd.version_record_key(i.key_prefix, p.name, g.epoch, g.generation, g.generation_id), true
			FROM artifactd.generation g JOIN artifactd.pointer p USING (pointer_id), artifactd.installation i
			WHERE g.state = 'published' AND g.collected_at IS NULL`
	unnamedSQL = `SELECT a.artifact_id::text FROM artifactd.artifact a
		WHERE NOT EXISTS (SELECT 1 FROM artifactd.manifest_file m WHERE m.artifact_id = a.artifact_id)`
	buriedSQL    = `SELECT reason, count(*) FROM campaign.buried GROUP BY reason`
	condemnedSQL = `SELECT object_key FROM campaign.buried WHERE reason = 'unknown'`
	keptSQL      = `SELECT p.name, g.epoch, g.generation FROM artifactd.generation g JOIN artifactd.pointer p USING (pointer_id)
		WHERE g.state = 'published' AND g.collecting_at IS NULL`
	// hurrySQL lets the time pass for which uploads could still land, and for which services that were
	// killed had claimed work. Nobody uploads any more.
	hurrySQL = `UPDATE artifactd.artifact SET writable_until = clock_timestamp() WHERE writable_until > clock_timestamp();
		UPDATE artifactd.deletion SET final_after = clock_timestamp() WHERE final_after > clock_timestamp();
		UPDATE artifactd.deletion SET not_before = clock_timestamp() WHERE not_before > clock_timestamp() + interval '5 seconds';
		UPDATE artifactd.outbox SET not_before = clock_timestamp() WHERE not_before > clock_timestamp() + interval '5 seconds';
		UPDATE artifactd.reconcile_pass SET live_until = clock_timestamp() WHERE ended_at IS NULL`
)

const (
	// leftoverTimeout bounds the wait for the last collection: a URL's life, a claim of the ledger
	// whose collector was killed, and the pace of a busy machine.
	leftoverTimeout = 12 * time.Minute
	leftoverPause   = 200 * time.Millisecond
)

// verifyCollection waits until nothing is left to collect, and then compares the bucket with the
// catalogue, key by key, and reads everything back. Nobody else does anything meanwhile.
func (c *campaign) verifyCollection(ctx context.Context) error {
	if len(c.shelves) == 0 {
		return nil
	}
	conn, err := c.stack.owner(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.Background()) }() // has done its work
	start := time.Now()
	if err := c.awaitCollected(ctx, conn); err != nil {
		return err
	}
	c.collection.took = time.Since(start)
	for _, check := range []func(context.Context, *pgx.Conn) error{c.noneTooFew, c.noneUnplanted, c.readBack} {
		if err := check(ctx, conn); err != nil {
			return err
		}
	}
	for _, s := range c.shelves {
		for _, problem := range s.unclaimed() {
			c.violate("%s", problem)
		}
	}
	return nil
}

// awaitCollected waits until nothing is left over, for as long as that may take.
func (c *campaign) awaitCollected(ctx context.Context, conn *pgx.Conn) error {
	for deadline := time.Now().Add(leftoverTimeout); ; {
		if c.options.hurry {
			if _, err := conn.Exec(ctx, hurrySQL); err != nil {
				return err
			}
		}
		left, err := c.leftOver(ctx, conn)
		if err != nil {
			return fmt.Errorf("look for what is left over: %w", err)
		}
		if len(left) == 0 {
			return nil
		}
		if time.Now().After(deadline) {
			c.violate("left over %s after the end: %s", leftoverTimeout, strings.Join(left[:min(len(left), 20)], "; "))
			return nil
		}
		select {
		case <-time.After(leftoverPause):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// leftOver says what is still there that should not be. The expensive look at the bucket comes when
// the database has nothing to say any more.
func (c *campaign) leftOver(ctx context.Context, conn *pgx.Conn) (left []string, err error) {
	var keys, orphans, records int
	if err := conn.QueryRow(ctx, dueSQL).Scan(&keys, &orphans, &records); err != nil {
		return nil, err
	}
	if keys+orphans+records > 0 {
		left = append(left, fmt.Sprintf("%d keys in the ledger, %d unknown objects, %d records in the outbox", keys, orphans, records))
	}
	for what, sql := range map[string]string{"generation": garbageSQL, "artifact that no file names:": unnamedSQL} {
		found, err := texts(ctx, conn, sql)
		if err != nil {
			return nil, err
		}
		for _, f := range found {
			left = append(left, what+" "+f)
		}
	}
	if len(left) > 0 {
		return left, nil
	}
	known, err := c.known(ctx, conn)
	if err != nil {
		return nil, err
	}
	c.collection.objects = 0
	for _, folder := range []string{"artifacts/", "versions/"} {
		for o, err := range c.stack.store.List(ctx, keyPrefix+folder) {
			if err != nil {
				return nil, err
			}
			c.collection.objects++
			if _, ok := known[o.Key]; !ok && !c.strays.is(o.Key, true) {
				left = append(left, "object "+o.Key)
			}
		}
	}
	return left, nil
}

func texts(ctx context.Context, conn *pgx.Conn, sql string) ([]string, error) {
	rows, err := conn.Query(ctx, sql)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[string])
}

// known are the keys of the catalogue, and whether there must be an object.
func (c *campaign) known(ctx context.Context, conn *pgx.Conn) (map[string]bool, error) {
	rows, err := conn.Query(ctx, keysSQL)
	if err != nil {
		return nil, err
	}
	known := map[string]bool{}
	var key string
	var stored bool
	_, err = pgx.ForEachRow(rows, []any{&key, &stored}, func() error { known[key] = stored; return nil })
	return known, err
}

// noneTooFew: every key that the catalogue knows has its object, everything that was to stay is there,
// and no version was collected that had to be kept.
func (c *campaign) noneTooFew(ctx context.Context, conn *pgx.Conn) error {
	want, err := c.known(ctx, conn)
	if err != nil {
		return err
	}
	c.strays.mu.Lock()
	for key := range c.strays.stay {
		want[key] = true
	}
	c.strays.mu.Unlock()
	for o, err := range c.stack.store.List(ctx, keyPrefix) {
		if err != nil {
			return err
		}
		delete(want, o.Key)
	}
	for key, stored := range want {
		if stored {
			c.violate("missing: the object %s", key)
		}
	}
	collected, err := texts(ctx, conn, tooManySQL)
	for _, v := range collected {
		c.violate("collected although it had to be kept: %s", v)
	}
	return err
}

// noneUnplanted: nothing is ever lost here, so the reconciler has condemned only what the campaign
// itself had put there, and of that nothing that was to stay.
func (c *campaign) noneUnplanted(ctx context.Context, conn *pgx.Conn) error {
	rows, err := conn.Query(ctx, buriedSQL)
	if err != nil {
		return err
	}
	c.collection.buried = map[string]int{}
	var reason string
	var n int
	if _, err = pgx.ForEachRow(rows, []any{&reason, &n}, func() error { c.collection.buried[reason] = n; return nil }); err != nil {
		return err
	}
	condemned, err := texts(ctx, conn, condemnedSQL)
	for _, key := range condemned {
		if !c.strays.is(key, false) {
			c.violate("the reconciler condemned %s, which the database had known", key)
		}
	}
	return err
}

// readBack reads every version of the shelves through the service and every object against its digest.
func (c *campaign) readBack(ctx context.Context, conn *pgx.Conn) error {
	kept, err := c.keptVersions(ctx, conn)
	if err != nil {
		return err
	}
	a := newActor(c, readBackStream)
	for _, s := range c.shelves {
		for _, t := range kept[s.name] {
			m, ok := s.holds(t)
			if !ok {
				c.violate("%s: version %s is there, and nobody has published it", s.name, t)
				continue
			}
			c.collection.kept++
			a.readWhole(s, t, m)
		}
		for _, t := range s.pins() {
			if !slices.Contains(kept[s.name], t) {
				c.violate("%s: version %s is pinned and was collected", s.name, t)
			}
		}
	}
	operator, err := daemon.OpenMaintenance(ctx, c.stack.config())
	if err != nil {
		return err
	}
	defer operator.Close()
	r, err := operator.Verifier.Run(ctx, gc.VerifyOptions{Deep: true, Found: func(p gc.Problem) {
		c.violate("%s: the object %s of %s", p.Fault, p.Key, p.Pointer)
	}})
	c.collection.verified = r.Checked
	return err
}

// readBackStream of randomness is apart from the actors'.
const readBackStream = 1 << 23

// readWhole reads a version that must be there. Nothing disturbs the services any more, but one may
// have been killed a moment ago.
func (a *actor) readWhole(s *shelf, t pointer.Token, m manifest) {
	for path, d := range m {
		status, body := 0, []byte(nil)
		for deadline := time.Now().Add(quiesceTimeout); !definite(status) && time.Now().Before(deadline); {
			status, body = a.readFile(s, t, path)
		}
		err := a.c.library.compare(d, body)
		if status != 200 || err != nil {
			a.c.violate("missing: %s: %s of version %s reads back as %d: %v", s.name, path, t, status, err)
		}
	}
}

func (c *campaign) keptVersions(ctx context.Context, conn *pgx.Conn) (map[string][]pointer.Token, error) {
	rows, err := conn.Query(ctx, keptSQL)
	if err != nil {
		return nil, err
	}
	kept := map[string][]pointer.Token{}
	var name string
	var t pointer.Token
	_, err = pgx.ForEachRow(rows, []any{&name, &t.Epoch, &t.Generation}, func() error {
		kept[name] = append(kept[name], t)
		return nil
	})
	return kept, err
}
