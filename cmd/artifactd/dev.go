package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/artifactd/artifactd/internal/daemon"
	"github.com/artifactd/artifactd/internal/devstack"
	"github.com/artifactd/artifactd/migrations"
	"github.com/artifactd/artifactd/pointer"
)

// What `dev` calls things.
const (
	devDatabase = "artifactd"
	devLogin    = "artifactd" // the service's database role
	devBucket   = "artifactd"
	devToken    = "dev"
	secretsName = "secrets.env"
	stopTimeout = time.Minute
)

func (p *Program) devCommand() *cobra.Command {
	config := daemon.Default()
	config.Listen = "127.0.0.1:8080"
	level := &logLevel{slog.LevelWarn}
	cmd := &cobra.Command{
		Use: "dev", Short: "Run everything on this machine: Postgres, S3, service and collector", Args: cobra.NoArgs,
		Long: `Run everything on this machine, with nothing to configure: a Postgres and an S3 server as child
processes, and the service on them. All data lies in the folder named by --data, which can be deleted
when nothing runs. Other commands find the service by that folder. Ctrl-C ends everything.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			d := &dev{p: p, config: config, logger: p.logger(level.Level)}
			return d.run(cmd.Context())
		},
	}
	cmd.Flags().StringVar(&config.Listen, "listen", config.Listen, "host:port of the API; port 0 picks a free one")
	cmd.Flags().Int64Var(&config.ProxyLimit, "proxy-limit", config.ProxyLimit, "largest file, in bytes, that is read through the service; -1 for all")
	config.GC.Bind(cmd.Flags())
	bindLogLevel(cmd, level)
	return cmd
}

// dev is one run of `artifactd dev`.
type dev struct {
	p        *Program
	config   daemon.Config
	logger   *slog.Logger
	dir      string
	postgres *devstack.Postgres
	s3       *devstack.S3
	secrets  map[string]string
}

func (d *dev) run(ctx context.Context) (err error) {
	if err := d.validate(); err != nil {
		return err
	}
	if d.dir, err = filepath.Abs(d.p.data); err != nil {
		return err
	}
	// Whatever can be wrong with the folder or the port is told before anything is started.
	lock, err := devstack.LockFolder(d.dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lock.Unlock()) }()
	if err := removeIfThere(d.clientEnv()); err != nil {
		return err
	}
	listener, err := daemon.Listen(d.config.Listen)
	if err != nil {
		return err
	}
	defer listener.Close() // also when the service, which closes it, was never reached
	if d.secrets, err = loadSecrets(filepath.Join(d.dir, secretsName)); err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer func() { err = errors.Join(err, d.stop()) }()
	if err := d.start(ctx); err != nil {
		return d.interrupted(ctx, err)
	}
	d.watch(cancel)
	defer func() { err = errors.Join(err, removeIfThere(d.clientEnv())) }()
	// Whoever holds the folder's lock is the only one on it, so the name is this folder's.
	replica := uuid.NewSHA1(uuid.NameSpaceURL, []byte("artifactd dev "+d.dir))
	err = daemon.Run(ctx, d.config, daemon.Options{Logger: d.logger, Listener: listener, Replica: replica, Ready: func(a net.Addr) {
		if err := d.announce(a); err != nil {
			cancel(err)
		}
	}})
	if cause := context.Cause(ctx); err == nil && cause != nil && !errors.Is(cause, context.Canceled) {
		return cause
	}
	return d.interrupted(ctx, err)
}

// validate checks what the flags say, as if the servers that are not there yet had been found.
func (d *dev) validate() error {
	config := d.config
	config.DatabaseURL, config.S3.Bucket = "postgres:///"+devDatabase, devBucket
	if err := config.Validate(); err != nil {
		return fmt.Errorf("%w: %w", errUsage, err)
	}
	return nil
}

// interrupted turns the errors that Ctrl-C causes while things start into an orderly end.
func (d *dev) interrupted(ctx context.Context, err error) error {
	if errors.Is(context.Cause(ctx), context.Canceled) {
		return nil
	}
	return err
}

func (d *dev) clientEnv() string { return filepath.Join(d.dir, clientEnvName) }

// start brings up the servers, at once, and then what they need to hold.
func (d *dev) start(ctx context.Context) error {
	group, ctx2 := errgroup.WithContext(ctx)
	group.Go(func() (err error) {
		d.postgres, err = devstack.StartPostgres(ctx2, devstack.PostgresOptions{DataDir: filepath.Join(d.dir, "postgres"), Logger: d.logger})
		return err
	})
	group.Go(func() (err error) {
		d.s3, err = devstack.StartS3(ctx2, devstack.S3Options{
			DataDir: filepath.Join(d.dir, "s3"), AccessKeyID: d.secrets["S3_ACCESS_KEY_ID"], SecretAccessKey: d.secrets["S3_SECRET_ACCESS_KEY"],
		})
		return err
	})
	if err := group.Wait(); err != nil {
		return err
	}
	owner := d.postgres.URL(devDatabase)
	d.config.DatabaseURL = d.postgres.URLAs(devLogin, devDatabase)
	d.config.S3 = daemon.S3Config{
		Driver: "aws", Endpoint: d.s3.Endpoint(), Region: d.s3.Region(), Bucket: devBucket, CreateBucket: true, Prefix: d.config.S3.Prefix,
		AccessKeyID: d.s3.AccessKeyID(), SecretAccessKey: d.s3.SecretAccessKey(), PathStyle: true,
	}
	if err := d.postgres.CreateDatabase(ctx, devDatabase); err != nil {
		return err
	}
	if err := migrations.Up(ctx, owner, migrations.Options{Logger: d.logger}); err != nil {
		return err
	}
	if err := daemon.EnsureLogin(ctx, owner, devLogin); err != nil {
		return err
	}
	return d.ensureToken(ctx, owner)
}

// ensureToken makes the access token that client.env hands out, unless the one of an earlier run is
// still good.
func (d *dev) ensureToken(ctx context.Context, owner string) error {
	admin, err := daemon.OpenAdmin(ctx, owner)
	if err != nil {
		return err
	}
	defer admin.Close()
	if _, err := admin.Authenticate(ctx, d.secrets["TOKEN"]); !errors.Is(err, pointer.ErrUnauthenticated) {
		return err
	}
	_, secret, err := admin.CreateToken(ctx, devToken, []pointer.Scope{pointer.ScopeAdmin}, []string{"*"}, nil)
	if err != nil {
		return err
	}
	d.secrets["TOKEN"] = secret
	return writeEnvFile(filepath.Join(d.dir, secretsName), d.secrets, "TOKEN", "S3_ACCESS_KEY_ID", "S3_SECRET_ACCESS_KEY")
}

// watch ends everything when one of the servers does.
func (d *dev) watch(cancel context.CancelCauseFunc) {
	go func() {
		select {
		case <-d.postgres.Done():
			cancel(fmt.Errorf("%w: Postgres has ended; its log is %s; what was acknowledged is safe: start again with `artifactd dev`", errUnavailable, d.postgres.LogFile()))
		case <-d.s3.Done():
			cancel(fmt.Errorf("%w: the S3 server has ended; its log is %s; what was acknowledged is safe: start again with `artifactd dev`", errUnavailable, d.s3.LogFile()))
		}
	}()
}

// stop ends what was started, the last first.
func (d *dev) stop() error {
	ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	var errs []error
	if d.s3 != nil {
		errs = append(errs, d.s3.Stop(ctx))
	}
	if d.postgres != nil {
		errs = append(errs, d.postgres.Stop(ctx))
	}
	return errors.Join(errs...)
}

// announce writes client.env and says what to try next.
func (d *dev) announce(a net.Addr) error {
	url := "http://" + reachable(a)
	s3 := d.config.S3
	err := writeEnvFile(d.clientEnv(), map[string]string{
		"ARTIFACTD_URL": url, "ARTIFACTD_TOKEN": d.secrets["TOKEN"], "ARTIFACTD_DATABASE_URL": sourceable(d.postgres.URL(devDatabase)),
		"ARTIFACTD_S3_ENDPOINT": s3.Endpoint, "ARTIFACTD_S3_BUCKET": s3.Bucket, "ARTIFACTD_S3_PREFIX": s3.Prefix,
		"ARTIFACTD_S3_REGION": s3.Region, "ARTIFACTD_S3_PATH_STYLE": "true",
		"ARTIFACTD_S3_ACCESS_KEY_ID": s3.AccessKeyID, "ARTIFACTD_S3_SECRET_ACCESS_KEY": s3.SecretAccessKey,
	}, "ARTIFACTD_URL", "ARTIFACTD_TOKEN", "ARTIFACTD_DATABASE_URL", "ARTIFACTD_S3_ENDPOINT", "ARTIFACTD_S3_REGION", "ARTIFACTD_S3_BUCKET",
		"ARTIFACTD_S3_PREFIX", "ARTIFACTD_S3_PATH_STYLE", "ARTIFACTD_S3_ACCESS_KEY_ID", "ARTIFACTD_S3_SECRET_ACCESS_KEY")
	if err != nil {
		return err
	}
	self := d.invocation()
	sample := d.sampleFile()
	d.p.note("artifactd: ready on %s; data in %s; Ctrl-C ends it\n\nTry in a second terminal:\n\n"+
		"  %[3]s pointer create demo\n  %[3]s publish demo %[4]s\n  %[3]s get demo -O copy-of-demo\n", url, d.p.data, self, sample)
	return nil
}

// sourceable leaves Postgres's default port out of a URL: what remains has no character that means
// something to a shell, so that `. client.env` works.
func sourceable(databaseURL string) string { return strings.TrimSuffix(databaseURL, "&port=5432") }

// reachable is an address that can be connected to: a wildcard stands for every address of the
// machine, the loopback one among them.
func reachable(a net.Addr) string {
	host, port, err := net.SplitHostPort(a.String())
	if err != nil {
		return a.String()
	}
	if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	return net.JoinHostPort(host, port)
}

// invocation is how this program is called from here.
func (d *dev) invocation() string {
	name := "artifactd"
	if self, err := os.Executable(); err == nil {
		if found, err := exec.LookPath(name); err != nil || found != self {
			name = self
			if wd, err := os.Getwd(); err == nil {
				if rel, err := filepath.Rel(wd, self); err == nil && filepath.IsLocal(rel) {
					name = "./" + rel
				}
			}
		}
	}
	if d.p.data != defaultData {
		name += " --data " + quoted(d.p.data)
	}
	return name
}

// sampleFile is a file that is surely there to be published.
func (d *dev) sampleFile() string {
	if info, err := os.Stat("README.md"); err == nil && info.Mode().IsRegular() {
		return "README.md"
	}
	if self, err := os.Executable(); err == nil {
		return quoted(self)
	}
	return "FILE"
}

// quoted makes a text one word of a shell.
func quoted(s string) string {
	if strings.ContainsFunc(s, func(r rune) bool {
		return !strings.ContainsRune("/._-", r) && (r < '0' || r > '9') && (r < 'A' || r > 'Z') && (r < 'a' || r > 'z')
	}) {
		return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
	}
	return s
}

// loadSecrets reads the credentials that stay the same from run to run, or makes new ones.
func loadSecrets(name string) (map[string]string, error) {
	b, err := os.ReadFile(name)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	secrets := parseEnvFile(string(b))
	if secrets["S3_ACCESS_KEY_ID"] == "" || secrets["S3_SECRET_ACCESS_KEY"] == "" {
		secrets["S3_ACCESS_KEY_ID"], secrets["S3_SECRET_ACCESS_KEY"] = "dev"+rand.Text()[:13], rand.Text()+rand.Text()
		return secrets, writeEnvFile(name, secrets, "S3_ACCESS_KEY_ID", "S3_SECRET_ACCESS_KEY")
	}
	return secrets, nil
}

// writeEnvFile puts a file of KEY=value lines in place, whole, and readable by its owner alone.
func writeEnvFile(name string, env map[string]string, order ...string) error {
	var b strings.Builder
	for _, k := range order {
		fmt.Fprintf(&b, "%s=%s\n", k, env[k])
	}
	temp := filepath.Join(filepath.Dir(name), temporaryName(filepath.Base(name)))
	f, err := os.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteString(b.String())
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(temp, name)
	}
	if err != nil {
		_ = os.Remove(temp) // the error that counts is the one before
	}
	return err
}

func removeIfThere(name string) error {
	err := os.Remove(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
