package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/artifactd/artifactd/internal/daemon"
)

// clientEnvName is the file in the data folder of `artifactd dev` that tells other commands how to
// reach it.
const clientEnvName = "client.env"

// clientEnvAnnotation marks commands that read it.
const clientEnvAnnotation = "artifactd/client-env"

func withClientEnv(cmd *cobra.Command) *cobra.Command {
	if cmd.Annotations == nil {
		cmd.Annotations = map[string]string{}
	}
	cmd.Annotations[clientEnvAnnotation] = "yes"
	return cmd
}

// settle gives every flag of cmd that the command line did not set its value from the environment
// or else, for commands that talk to a service, from client.env; and checks what all commands share.
func (p *Program) settle(cmd *cobra.Command) error {
	env := parseEnviron(p.Environ)
	if err := fill(cmd.Flags(), env, "the environment"); err != nil {
		return err
	}
	if cmd.Annotations[clientEnvAnnotation] != "" {
		found, err := p.readClientEnv()
		if err != nil {
			return err
		}
		if err := fill(cmd.Flags(), found, clientEnvName); err != nil {
			return err
		}
	}
	if p.format != "table" && p.format != "json" {
		return fmt.Errorf(`--output must be "table" or "json", not %q`, p.format)
	}
	return nil
}

// fill sets the flags that have no value yet and are in env.
func fill(flags *pflag.FlagSet, env map[string]string, origin string) error {
	var faults []error
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Changed || f.Name == "help" {
			return
		}
		name := daemon.EnvName(f.Name)
		// An empty variable is as good as none, but an empty token says to use none: somebody else's must
		// not take its place.
		if v, ok := env[name]; ok && (v != "" || f.Name == "token") {
			if err := flags.Set(f.Name, v); err != nil {
				faults = append(faults, fmt.Errorf("%s in %s: %w", name, origin, err))
			}
		}
	})
	return errors.Join(faults...)
}

func parseEnviron(environ []string) map[string]string {
	env := make(map[string]string, len(environ))
	for _, kv := range environ {
		if k, v, ok := strings.Cut(kv, "="); ok {
			env[k] = v
		}
	}
	return env
}

// maxClientEnv bounds the file, in bytes.
const maxClientEnv = 64 << 10

// readClientEnv reads the settings that `artifactd dev` left for others. The file holds
// credentials and decides where ours are sent, so it counts only when it is the caller's own and
// nobody else may read or write it.
func (p *Program) readClientEnv() (map[string]string, error) {
	name := filepath.Join(p.data, clientEnvName)
	f, err := os.OpenFile(name, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case err != nil:
		p.note("artifactd: %s is left alone: %v", name, err)
		return nil, nil
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if owner, ok := info.Sys().(*syscall.Stat_t); !ok || int(owner.Uid) != os.Geteuid() || info.Mode() != 0o600 {
		p.note("artifactd: %s is left alone: it must be a file of your own with mode 0600", name)
		return nil, nil
	}
	b, err := io.ReadAll(io.LimitReader(f, maxClientEnv))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	return parseEnvFile(string(b)), nil
}

// parseEnvFile reads KEY=value lines; a # begins a comment line.
func parseEnvFile(text string) map[string]string {
	var lines []string
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			lines = append(lines, line)
		}
	}
	return parseEnviron(lines)
}
