package main

import (
	"bytes"
	"context"
	"crypto/md5"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/artifactd/artifactd/artifacts"
	"github.com/artifactd/artifactd/artifacts/s3store"
	"github.com/artifactd/artifactd/client"
	"github.com/artifactd/artifactd/internal/daemon"
	"github.com/artifactd/artifactd/migrations"
	"github.com/artifactd/artifactd/pointer"
)

// site is an installation of its own on the stack's servers, with a service that does not collect by
// itself and a catalogue of a certain size.
type site struct {
	database string
	owner    *pgx.Conn
	layout   artifacts.Layout
	store    *s3store.Store
	service  *child
	api      *apiClient
	client   *client.Client
	tags     int
}

// newSite makes an installation with a catalogue of about live files, whose objects are not there:
// what collection costs must not depend on them.
func (s *stack) newSite(ctx context.Context, name string, live int) (*site, error) {
	if known, ok := s.sites[name]; ok {
		return known, nil
	}
	o, err := s.newSiteWith(ctx, name, func(*daemon.Config) {})
	if err != nil || live == 0 {
		return o, err
	}
	return o, o.rows(ctx, "live", live, true)
}

// newSiteWith makes an installation whose service is configured otherwise, or whose database was
// changed by sql before that starts.
func (s *stack) newSiteWith(ctx context.Context, name string, change func(*daemon.Config), sql ...string) (*site, error) {
	token, err := s.install(ctx, name)
	if err != nil {
		return nil, err
	}
	o := &site{database: name, layout: artifacts.Layout{Prefix: name + "/"}}
	c := s.serviceConfig(name)
	c.S3.Prefix, c.GC.Interval, c.GC.ReconcileInterval = o.layout.Prefix, 0, 0
	change(&c)
	if o.owner, err = pgx.Connect(ctx, s.postgres.URL(name)); err != nil {
		return nil, err
	}
	s.sites[name] = o
	for _, statement := range sql {
		if _, err := o.owner.Exec(ctx, statement); err != nil {
			return nil, fmt.Errorf("change the database %s: %w", name, err)
		}
	}
	if o.service, err = s.startChild(ctx, childConfig{Kind: childService, Service: c}); err != nil {
		return nil, err
	}
	o.api = newAPIClient("http://"+o.service.API, token, maxWorkers)
	if o.client, err = client.New(o.api.base, token, client.Options{}); err != nil {
		return nil, err
	}
	o.store, err = s3store.New(ctx, s3store.Config{
		Endpoint: s.store.Endpoint, Region: s.store.Region, Bucket: s.store.Bucket, Prefix: o.layout.Prefix,
		AccessKeyID: s.store.AccessKeyID, SecretAccessKey: s.store.SecretAccessKey, PathStyle: s.store.PathStyle,
	})
	return o, err
}

// rowsSQL makes artifacts 1 to $2, ten a generation, ten generations a pointer, all in the past. $3
// says whether they are published, with one version shown and nine kept by their number; otherwise
// they are dead generations, due now. Past the functions, because those take a call for each.
var rowsSQL = []string{
	`INSERT INTO artifactd.pointer (name, epoch, generation, head_id, current_id, current_epoch, current_generation, keep_versions)
	 SELECT 'bench.' || $1::text || '.' || p, 1, 10, md5($1::text || '-g' || 10 * p + 10)::uuid, CASE WHEN $3::bool THEN md5($1::text || '-g' || 10 * p + 10)::uuid END,
	        CASE WHEN $3::bool THEN 1 END, CASE WHEN $3::bool THEN 10 END, 1000 FROM generate_series(0, ($2::int - 1) / 100) p`,
	`INSERT INTO artifactd.generation (generation_id, pointer_id, epoch, generation, state, holder, ttl_seconds, acquired_at, ended_at,
	     manifest_id, file_count, total_bytes, published_at, displaced_at, collect_at)
	 SELECT md5($1::text || '-g' || g)::uuid, p.pointer_id, 1, 1 + (g - 1) % 10, CASE WHEN $3::bool THEN 'published' ELSE 'superseded' END, 'bench', 60, t, t,
	        md5($1::text || '-g' || g)::uuid, 10, 100, CASE WHEN $3::bool THEN t END, CASE WHEN $3::bool AND g % 10 <> 0 THEN t END, CASE WHEN NOT $3::bool THEN now() END
	   FROM generate_series(1, ($2::int - 1) / 10 + 1) g JOIN artifactd.pointer p ON p.name = 'bench.' || $1::text || '.' || (g - 1) / 10
	  CROSS JOIN (SELECT now() - interval '2 days' AS t) past`,
	`INSERT INTO artifactd.artifact (artifact_id, pointer_id, generation_id, digest, size, media_type, stored_at, writable_until)
	 SELECT md5($1::text || '-' || i)::uuid, g.pointer_id, g.generation_id, sha256(($1::text || '-' || i)::bytea), length($1::text || '-' || i), 'x', g.ended_at, g.ended_at
	   FROM generate_series(1, $2::int) i JOIN artifactd.generation g ON g.generation_id = md5($1::text || '-g' || (i - 1) / 10 + 1)::uuid WHERE $3::bool IS NOT NULL`,
	`INSERT INTO artifactd.manifest_file (manifest_id, path, artifact_id, media_type)
	 SELECT md5($1::text || '-g' || (i - 1) / 10 + 1)::uuid, 'f' || i, md5($1::text || '-' || i)::uuid, 'x' FROM generate_series(1, $2::int) i WHERE $3::bool IS NOT NULL`,
}

// rows makes the rows of n artifacts under a tag.
func (o *site) rows(ctx context.Context, tag string, n int, published bool) error {
	err := pgx.BeginFunc(ctx, o.owner, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `SET LOCAL session_replication_role = replica`); err != nil {
			return err
		}
		for _, sql := range rowsSQL {
			if _, err := tx.Exec(ctx, sql, tag, n, published); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("make a catalogue of %d: %w", n, err)
	}
	_, err = o.owner.Exec(ctx, `ANALYZE artifactd.pointer, artifactd.generation, artifactd.artifact, artifactd.manifest_file`)
	return err
}

// makersAtOnce is how many objects are made at once.
const makersAtOnce = 16

// objects stores the objects that rows speaks of.
func (o *site) objects(ctx context.Context, tag string, n int) error {
	return each(ctx, n, func(ctx context.Context, i int) error {
		content := fmt.Appendf(nil, "%s-%d", tag, i+1)
		digest := artifacts.DigestOf(content)
		return o.store.Put(ctx, artifacts.Upload{
			Key: o.layout.ArtifactKey(digest, uuid.UUID(md5.Sum(content))), Digest: digest, Size: int64(len(content)),
			ContentType: "application/octet-stream", Metadata: map[string]string{"artifactd-pointer": "bench." + tag, "artifactd-token": "1.1"},
		}, bytes.NewReader(content))
	})
}

// each does something n times, several at once.
func each(ctx context.Context, n int, do func(ctx context.Context, i int) error) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(makersAtOnce)
	for i := range n {
		if ctx.Err() != nil {
			break
		}
		g.Go(func() error { return do(ctx, i) })
	}
	return g.Wait()
}

// garbage makes n objects of dead generations, which the next collection takes.
func (o *site) garbage(ctx context.Context, n int) error {
	o.tags++
	tag := fmt.Sprintf("dead%d", o.tags)
	if err := o.objects(ctx, tag, n); err != nil {
		return err
	}
	return o.rows(ctx, tag, n, false)
}

// install makes a database with its schema, the service's login and an access token, whose secret it
// returns.
func (s *stack) install(ctx context.Context, database string) (string, error) {
	if err := s.postgres.CreateDatabase(ctx, database); err != nil {
		return "", err
	}
	owner := s.postgres.URL(database)
	if err := migrations.Up(ctx, owner, migrations.Options{}); err != nil {
		return "", err
	}
	if err := daemon.EnsureLogin(ctx, owner, login); err != nil {
		return "", err
	}
	admin, err := daemon.OpenAdmin(ctx, owner)
	if err != nil {
		return "", err
	}
	defer admin.Close()
	_, secret, err := admin.CreateToken(ctx, "bench", []pointer.Scope{pointer.ScopeAdmin}, []string{"*"}, nil)
	return secret, err
}
