package devstack

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// ErrNoS3Server says that this binary was built without the development S3 server.
var ErrNoS3Server = errors.New("this build has no S3 server in it (built with the tag nodevs3): " +
	"use the released artifactd binary, or name an S3 store in the configuration")

// S3Options configure StartS3.
type S3Options struct {
	// DataDir is the folder that holds everything of this server. It is made when missing.
	DataDir string
	// Listen is a host and port; port 0 picks the one of the folder's last run if it is free, or else
	// any that is. Empty means 127.0.0.1:0.
	Listen string
	// AccessKeyID and SecretAccessKey are the root credentials. Empty: random ones.
	AccessKeyID, SecretAccessKey string
	// Region is what the server calls itself; empty means us-east-1.
	Region string
}

// S3 is a running S3 server child.
type S3 struct {
	proc     *Process
	lock     *Lock
	options  S3Options
	endpoint string
	log      string
}

// s3ChildConfig goes from the parent to the child, on standard input: it holds a secret.
type s3ChildConfig struct {
	Listen, Region               string
	AccessKeyID, SecretAccessKey string
	Objects, Versions, Sidecar   string // folders; none's name begins with another's
	HealthPath                   string
}

// s3StartTries bounds how often another free port is tried, when one was taken in between.
const s3StartTries = 5

// StartS3 starts the S3 server and returns when it answers. Versioned buckets work.
func StartS3(ctx context.Context, o S3Options) (*S3, error) {
	if !hasS3Child {
		return nil, ErrNoS3Server
	}
	if o.DataDir == "" {
		return nil, errors.New("S3Options.DataDir must name a folder")
	}
	if err := o.complete(); err != nil {
		return nil, err
	}
	_, port, err := net.SplitHostPort(o.Listen)
	if err != nil {
		return nil, fmt.Errorf("S3 listen address %q must be host:port: %w", o.Listen, err)
	}
	lock, err := LockFolder(o.DataDir)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	s := &S3{lock: lock, options: o, log: filepath.Join(o.DataDir, "s3.log")}
	for try := 1; ; try++ {
		err = s.start(ctx)
		if err == nil {
			return s, nil
		}
		if port != "0" || !errors.Is(err, ErrEndedEarly) || try == s3StartTries {
			return nil, errors.Join(err, lock.Unlock())
		}
	}
}

func (o *S3Options) complete() (err error) {
	if o.DataDir, err = filepath.Abs(o.DataDir); err != nil {
		return err
	}
	if o.Listen == "" {
		o.Listen = "127.0.0.1:0"
	}
	if o.Region == "" {
		o.Region = "us-east-1"
	}
	if o.AccessKeyID == "" {
		o.AccessKeyID = "dev" + randomHex(8)
	}
	if o.SecretAccessKey == "" {
		o.SecretAccessKey = randomHex(20)
	}
	return nil
}

// randomHex is n random bytes in hex. crypto/rand.Read never fails: it ends the program instead.
func randomHex(n int) string {
	b := make([]byte, n)
	_, _ = rand.Read(b)
	return hex.EncodeToString(b)
}

func (s *S3) start(ctx context.Context) error {
	addr, err := s.address()
	if err != nil {
		return err
	}
	c := s3ChildConfig{
		Listen: addr, Region: s.options.Region,
		AccessKeyID: s.options.AccessKeyID, SecretAccessKey: s.options.SecretAccessKey,
		Objects:  filepath.Join(s.options.DataDir, "objects"),
		Versions: filepath.Join(s.options.DataDir, "versions"),
		Sidecar:  filepath.Join(s.options.DataDir, "sidecar"),
		// Only this child knows the path, so only it can answer.
		HealthPath: "/ready-" + randomHex(8),
	}
	for _, dir := range []string{c.Objects, c.Versions} {
		if err := makeFolder(dir); err != nil {
			return err
		}
	}
	if err := rotateLog(s.log); err != nil {
		return folderError(s.options.DataDir, err)
	}
	proc, err := startS3Child(ctx, c, s.options.DataDir, s.log)
	if err != nil {
		return err
	}
	s.endpoint = "http://" + addr
	if err := proc.Await(ctx, Answers(s.endpoint+c.HealthPath)); err != nil {
		proc.Kill()
		<-proc.Done()
		return fmt.Errorf("the S3 server did not start on %s: %w; its log (%s) ends:\n%s", addr, err, s.log, logTail(s.log))
	}
	s.proc = proc
	return s.rememberAddress(addr)
}

// addressName is the file in the data folder with the host and port that the server had last.
const addressName = "address"

// address is where to listen. Signed URLs that are out name the port of the run before: on the same
// one an upload goes on where it was when everything was killed.
func (s *S3) address() (string, error) {
	host, port, err := net.SplitHostPort(s.options.Listen)
	if err == nil && port == "0" {
		last, _ := os.ReadFile(filepath.Join(s.options.DataDir, addressName)) // there need not have been a run
		if h, p, err := net.SplitHostPort(strings.TrimSpace(string(last))); err == nil && h == host && p != "0" {
			if addr, err := FreeAddress(net.JoinHostPort(h, p)); err == nil {
				return addr, nil
			}
		}
	}
	return FreeAddress(s.options.Listen)
}

func (s *S3) rememberAddress(addr string) error {
	if err := os.WriteFile(filepath.Join(s.options.DataDir, addressName), []byte(addr+"\n"), 0o600); err != nil {
		s.proc.Kill()
		<-s.proc.Done()
		return folderError(s.options.DataDir, err)
	}
	return nil
}

func startS3Child(ctx context.Context, c s3ChildConfig, dir, log string) (*Process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find this executable: %w", err)
	}
	input, err := json.Marshal(c)
	if err != nil {
		return nil, err
	}
	return StartProcess(ctx, ProcessSpec{
		Path: self, Dir: dir, Log: log, StopSignal: syscall.SIGTERM,
		Env:        append(os.Environ(), childEnv+"="+childS3),
		selfEnding: true, input: append(input, '\n'),
	})
}

// FreeAddress is the given host:port, with a free port in place of port 0. A busy port is told
// here, where the reason is known.
func FreeAddress(listen string) (string, error) {
	l, err := net.Listen("tcp", listen)
	if errors.Is(err, syscall.EADDRINUSE) {
		return "", fmt.Errorf("%s is in use: stop what listens there, or choose another port: %w", listen, err)
	}
	if err != nil {
		return "", fmt.Errorf("listen on %s: %w", listen, err)
	}
	addr := l.Addr().String()
	return addr, l.Close()
}

// Answers asks a health address for status 200; for [Process.Await].
func Answers(address string) func(context.Context) (bool, error) {
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 10 * time.Second}
	return func(ctx context.Context) (bool, error) {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
		if err != nil {
			return false, err
		}
		resp, err := client.Do(req)
		if err != nil {
			return false, nil // not listening yet
		}
		defer resp.Body.Close()
		_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, 1<<10))
		return resp.StatusCode == http.StatusOK, nil
	}
}

// Endpoint is the server's base URL.
func (s *S3) Endpoint() string { return s.endpoint }

// AccessKeyID and SecretAccessKey are the root credentials.
func (s *S3) AccessKeyID() string { return s.options.AccessKeyID }

// SecretAccessKey is the secret of AccessKeyID.
func (s *S3) SecretAccessKey() string { return s.options.SecretAccessKey }

// Region is what the server calls itself.
func (s *S3) Region() string { return s.options.Region }

// Pid is the server's process id.
func (s *S3) Pid() int { return s.proc.Pid() }

// LogFile is the server's log.
func (s *S3) LogFile() string { return s.log }

// Done is closed when the server has ended, for whatever reason.
func (s *S3) Done() <-chan struct{} { return s.proc.Done() }

// Err tells how the server ended; valid once Done is closed.
func (s *S3) Err() error { return s.proc.Err() }

// Stop ends the server in order, by force when the context ends. The folder is free afterwards.
func (s *S3) Stop(ctx context.Context) error {
	return errors.Join(s.proc.Stop(ctx), s.lock.Unlock())
}

// Kill ends the server at once, as a crash does, and frees the folder.
func (s *S3) Kill() error {
	s.proc.Kill()
	<-s.proc.Done()
	return s.lock.Unlock()
}
