package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"os"
	"os/user"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	"golang.org/x/term"

	"github.com/artifactd/artifactd/api/types"
	"github.com/artifactd/artifactd/client"
)

// publishFlags are the flags of `publish`.
type publishFlags struct {
	holder         string
	ttl, wait      time.Duration
	metadata       []string
	sourceRevision int64
	operationID    string
	name           string // of standard input, in the version
	follow         bool   // symbolic links
}

func (p *Program) publishCommand() *cobra.Command {
	var f publishFlags
	cmd := &cobra.Command{
		Use:   "publish NAME PATH...",
		Short: "Publish files as the new version of a pointer",
		Long: `Publish files as the new version of a pointer. A file is named by its base name, a folder's files by
their paths below it; modes, times and empty folders are not kept. Symbolic links below a folder are
refused; with --follow-symlinks they are published as the files and folders they lead to, as long as
those are in that folder too. A lease is taken, held while the bytes move and given back if anything
fails; readers see all of it or nothing.

A publish that was cut off and is started again moves only what is missing. With --operation-id it
goes on under the lease it had; without, it waits for that lease to end (see --wait) and adopts what
was left. Once it has published, the same --operation-id with the same files, metadata and revision
answers what was published; with others it is refused (exit code 12).

PATH "-" is standard input, which is copied to a temporary file first, since its digest must be known
before its first byte is sent. --name says what it is called in the version.`,
		Example: "  artifactd publish acme.reports.daily report.pdf\n  artifactd publish acme.site ./public --metadata commit=4f2a9c1\n  pg_dump app | artifactd publish acme.backup - --name app.sql",
		Args:    cobra.MinimumNArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			return p.publish(cmd, args[0], args[1:], f)
		},
	}
	cmd.Flags().StringVar(&f.holder, "holder", "", "who publishes, for people (default user@host)")
	cmd.Flags().DurationVar(&f.ttl, "ttl", time.Minute, "how long the lease outlives this command, should it be killed")
	cmd.Flags().DurationVar(&f.wait, "wait", 0, "how long to wait for somebody else's lease")
	cmd.Flags().StringArrayVar(&f.metadata, "metadata", nil, "key=value, or a JSON object; can be repeated")
	cmd.Flags().Int64Var(&f.sourceRevision, "source-revision", 0, "orders sources: older than what is published is refused")
	cmd.Flags().StringVar(&f.operationID, "operation-id", "", "UUID of this publish, to repeat it safely")
	cmd.Flags().StringVar(&f.name, "name", "", "path in the version of what comes from standard input (PATH \"-\")")
	f.bindFollow(cmd)
	return p.clientCommand(cmd)
}

// bindFollow declares the flag that says what becomes of symbolic links.
func (f *publishFlags) bindFollow(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&f.follow, "follow-symlinks", false, "publish what symbolic links lead to, where that is in the same folder")
}

func (p *Program) publish(cmd *cobra.Command, name string, paths []string, f publishFlags) error {
	publication, err := f.publication(cmd)
	if err != nil {
		return err
	}
	paths, piped, err := f.inputs(paths)
	if err != nil {
		return err
	}
	c, err := p.client()
	if err != nil {
		return err
	}
	defer c.Close()
	nothing, repeated := "nothing was published", false
	if publication.OperationID != uuid.Nil {
		nothing += " by this command" // an earlier one with the same id may be on its way
		// What was refused is known before anything is read.
		if _, repeated, err = c.Recorded(cmd.Context(), name, publication.OperationID); err != nil {
			return err
		}
	}
	g, err := p.gather(cmd.Context(), paths, piped, f)
	if err != nil {
		return interruptedPublish(cmd.Context(), err, nothing)
	}
	defer g.release()
	published, err := c.PublishFiles(cmd.Context(), name, g.bar.follow(g.sources),
		p.acquisition(name, f), publication, nil)
	g.bar.stop()
	if err != nil {
		return interruptedPublish(cmd.Context(), err, nothing+"; run the same command again: what has arrived is not sent again")
	}
	if !repeated {
		p.note("artifactd: sent %s; %s were there already", size(published.UploadedBytes), size(published.AdoptedBytes))
	}
	return p.printFiles(name, published)
}

// acquisition is how a command takes its lease. It says what it waits for, if it has to.
func (p *Program) acquisition(name string, f publishFlags) client.AcquireOptions {
	return client.AcquireOptions{Holder: holderOr(f.holder), TTL: f.ttl, Wait: f.wait, Held: func(held *client.Problem) {
		left := time.Duration(held.ExpiresInSeconds * float64(time.Second))
		p.note("artifactd: waiting up to %s for the lease of %s: %s holds it for another %s, longer if it is renewed",
			period(f.wait), name, legible(held.Holder), period(left))
	}}
}

// interruptedPublish says what became of a publish that was interrupted. A publish whose request was
// out is settled before its error is here, so an interrupt is what it says: nothing was published.
func interruptedPublish(ctx context.Context, err error, text string) error {
	if ctx.Err() == nil || !errors.Is(err, context.Canceled) {
		return err
	}
	return &interruptedError{text}
}

// inputs takes standard input ("-") out of the paths.
func (f *publishFlags) inputs(paths []string) (files []string, piped bool, err error) {
	for _, path := range paths {
		switch {
		case path != "-":
			files = append(files, path)
		case piped:
			return nil, false, fmt.Errorf("%w: standard input can be published as one file only; give \"-\" once", errUsage)
		default:
			piped = true
		}
	}
	switch {
	case piped && f.name == "":
		return nil, false, fmt.Errorf("%w: standard input has no name; say with --name what it is called in the version, for example --name report.csv", errUsage)
	case !piped && f.name != "":
		return nil, false, fmt.Errorf("%w: --name is for standard input, which is published by PATH \"-\"; files keep their names", errUsage)
	}
	return files, piped, nil
}

// gathered is everything that is to be published, hashed.
type gathered struct {
	sources []client.Source
	bar     *bar
	spool   io.Closer // nil unless there is standard input
}

// release takes the bar away and gives the temporary file back.
func (g *gathered) release() {
	g.bar.stop()
	if g.spool != nil {
		_ = g.spool.Close() // it has been read
	}
}

// gather hashes what is to be published, after reading standard input if that is part of it.
func (p *Program) gather(ctx context.Context, paths []string, piped bool, f publishFlags) (_ *gathered, err error) {
	var named []namedFile
	var total, pipedBytes int64
	if len(paths) > 0 {
		if named, total, err = p.walk(paths, f.follow); err != nil {
			return nil, err
		}
	}
	g := &gathered{bar: &bar{}}
	defer func() {
		if err != nil {
			g.release()
		}
	}()
	if piped {
		var src client.Source
		if src, g.spool, err = p.spool(ctx, f.name, named); err != nil {
			return nil, err
		}
		g.sources, pipedBytes = append(g.sources, src), src.Size
	}
	g.bar = p.progress("hashing", total+pipedBytes, len(named)+len(g.sources))
	g.bar.add(pipedBytes)
	hashed, err := hashSources(ctx, named, g.bar)
	if err != nil {
		return nil, err
	}
	g.sources = append(g.sources, hashed...)
	g.bar.next("sending", total+pipedBytes, len(g.sources))
	g.bar.hold() // first comes the lease
	return g, nil
}

// spool reads standard input to its end. What it returns must be closed after the upload.
func (p *Program) spool(ctx context.Context, path string, others []namedFile) (client.Source, io.Closer, error) {
	for _, other := range others {
		if other.path == path {
			return client.Source{}, nil, fmt.Errorf("%w: standard input and %s would both be named %s; choose another --name", errUsage, legible(other.file), legible(path))
		}
	}
	if f, ok := p.Stdin.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		p.note("artifactd: reading standard input; end it with Ctrl-D")
	}
	src, spool, err := client.SpoolSource(ctx, p.Stdin, path)
	if err != nil {
		return src, nil, fmt.Errorf("standard input: %w", err)
	}
	src.MediaType = mime.TypeByExtension(filepath.Ext(path))
	return src, spool, nil
}

func (p *Program) printFiles(name string, published client.FilesPublished) error {
	return p.printOutcome(name, published.Published, published)
}

func (p *Program) printPublished(name string, published types.Published) error {
	return p.printOutcome(name, published, published)
}

// printOutcome prints a table for people; data is what -o json prints. Whoever sees this command fail
// must not take it for a publish that did not happen.
func (p *Program) printOutcome(name string, published types.Published, data any) error {
	err := p.print(data, func(t *table) {
		t.row("POINTER", "VERSION", "OUTCOME", "OPERATION")
		t.row(name, published.Version, published.Outcome, published.OperationId)
	})
	if err != nil {
		return fmt.Errorf("published %s %s, but that could not be printed: %w", name, published.Version, err)
	}
	return nil
}

func (f *publishFlags) publication(cmd *cobra.Command) (client.Publication, error) {
	var pub client.Publication
	if err := f.checkTimes(); err != nil {
		return pub, err
	}
	var err error
	if pub.Metadata, err = parseMetadata(f.metadata); err != nil {
		return pub, fmt.Errorf("%w: %w", errUsage, err)
	}
	if cmd.Flags().Changed("source-revision") {
		pub.SourceRevision = &f.sourceRevision
	}
	pub.OperationID, err = parseOperationID(f.operationID)
	return pub, err
}

// checkTimes refuses what the client would take for "not given".
func (f *publishFlags) checkTimes() error {
	switch {
	case f.ttl < time.Second:
		return fmt.Errorf("%w: --ttl must be at least 1s, not %s", errUsage, f.ttl)
	case f.wait < 0:
		return fmt.Errorf("%w: --wait must not be negative", errUsage)
	}
	return nil
}

func parseOperationID(s string) (uuid.UUID, error) {
	if s == "" {
		return uuid.Nil, nil
	}
	id, err := uuid.Parse(s)
	if err != nil || id == uuid.Nil {
		return uuid.Nil, fmt.Errorf("%w: --operation-id must be a UUID, not %q", errUsage, s)
	}
	return id, nil
}

// parseMetadata merges key=value pairs and JSON objects, later ones winning. Nothing given is nil.
func parseMetadata(given []string) (json.RawMessage, error) {
	if len(given) == 0 {
		return nil, nil
	}
	all := map[string]json.RawMessage{}
	for _, g := range given {
		if strings.HasPrefix(strings.TrimSpace(g), "{") {
			var object map[string]json.RawMessage
			if err := json.Unmarshal([]byte(g), &object); err != nil {
				return nil, fmt.Errorf("--metadata is not a JSON object: %w", err)
			}
			for k, v := range object {
				all[k] = v
			}
			continue
		}
		k, v, ok := strings.Cut(g, "=")
		if !ok || k == "" {
			return nil, fmt.Errorf("--metadata must be key=value or a JSON object, not %q", g)
		}
		text, err := json.Marshal(v)
		if err != nil {
			return nil, err
		}
		all[k] = text
	}
	return json.Marshal(all)
}

// holderOr is who works, for people: what was given, or user@host.
func holderOr(given string) string {
	if given != "" {
		return given
	}
	name := "somebody"
	if u, err := user.Current(); err == nil && u.Username != "" {
		name = u.Username
	}
	if host, err := os.Hostname(); err == nil {
		name += "@" + host
	}
	return name
}

// hashSources reads every file once, as many at a time as there are processors.
func hashSources(ctx context.Context, files []namedFile, bar *bar) ([]client.Source, error) {
	sources := make([]client.Source, len(files))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(runtime.GOMAXPROCS(0))
	for i, f := range files {
		group.Go(func() error {
			tell := bar.file(f.path, f.size)
			src, err := client.FileSource(ctx, f.file, f.path, func(n int) { tell(int64(n)) })
			src.MediaType = mime.TypeByExtension(filepath.Ext(f.path))
			sources[i] = src
			return err
		})
	}
	return sources, group.Wait()
}
