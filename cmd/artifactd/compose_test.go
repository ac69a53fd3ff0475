package main

import (
	"io"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/compose-spec/compose-go/v2/cli"
	composetypes "github.com/compose-spec/compose-go/v2/types"
	"github.com/spf13/pflag"

	"github.com/artifactd/artifactd/internal/daemon"
)

// composeProject parses compose.yaml as `docker compose` does.
func composeProject(t *testing.T, profiles ...string) *composetypes.Project {
	t.Helper()
	options, err := cli.NewProjectOptions([]string{"../../compose.yaml"}, cli.WithProfiles(profiles), cli.WithInterpolation(true),
		cli.WithEnv([]string{"POSTGRES_PASSWORD=owner-secret", "SERVICE_PASSWORD=service-secret", "S3_SECRET_KEY=s3-secret"}))
	if err != nil {
		t.Fatal(err)
	}
	project, err := options.LoadProject(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return project
}

// TestComposeSpeaksTheConfiguration: every setting in compose.yaml is one that the command knows, with
// a value that it takes.
func TestComposeSpeaksTheConfiguration(t *testing.T) {
	project := composeProject(t, "minio")
	ours := 0
	for name, service := range project.Services {
		if service.Image != "artifactd:local" {
			continue
		}
		ours++
		root := (&Program{Stderr: io.Discard}).command()
		cmd, _, err := root.Find(service.Command)
		if err != nil || cmd == root {
			t.Errorf("%s: no command %v: %v", name, service.Command, err)
			continue
		}
		known := map[string]*pflag.Flag{}
		cmd.InheritedFlags()
		cmd.Flags().VisitAll(func(f *pflag.Flag) { known[daemon.EnvName(f.Name)] = f })
		for variable, value := range service.Environment {
			f, ok := known[variable]
			switch {
			case !ok:
				t.Errorf("%s: %s is no setting of `artifactd %s`", name, variable, service.Command[0])
			case value == nil:
				t.Errorf("%s: %s has no value", name, variable)
			default:
				if err := f.Value.Set(*value); err != nil {
					t.Errorf("%s: %s: %v", name, variable, err)
				}
			}
		}
	}
	if ours != 2 {
		t.Errorf("%d services of artifactd, want migrate and serve", ours)
	}
}

// TestComposeServesAValidConfiguration: what `serve` gets there passes its validation.
func TestComposeServesAValidConfiguration(t *testing.T) {
	serve, err := composeProject(t).GetService("serve")
	if err != nil {
		t.Fatal(err)
	}
	config := daemon.Default()
	flags := pflag.NewFlagSet("serve", pflag.ContinueOnError)
	config.Bind(flags)
	env := map[string]string{}
	for k, v := range serve.Environment {
		env[k] = *v
	}
	if err := fill(flags, env, "compose.yaml"); err != nil {
		t.Fatal(err)
	}
	if err := config.Validate(); err != nil {
		t.Error(err)
	}
	if strings.Contains(config.DatabaseURL, "owner") {
		t.Error("the service connects as the owner of the tables")
	}
}

func TestComposeIsWhole(t *testing.T) {
	if names := slices.Sorted(maps.Keys(composeProject(t).Services)); !slices.Equal(names, []string{"migrate", "postgres", "serve", "versitygw"}) {
		t.Errorf("services without a profile: %v", names)
	}
	project := composeProject(t, "minio")
	minio, err := project.GetService("minio")
	if err != nil || minio.Image != "quay.io/minio/minio:RELEASE.2025-09-07T16-13-09Z" {
		t.Errorf("minio: %v, %v", minio.Image, err)
	}
	for name, service := range project.Services {
		if name != "migrate" && service.HealthCheck == nil {
			t.Errorf("%s has no health check", name)
		}
	}
	// The service's health check is a command of ours.
	serve, _ := project.GetService("serve")
	root := (&Program{Stderr: io.Discard}).command()
	if cmd, _, err := root.Find(serve.HealthCheck.Test[2:3]); err != nil || cmd == root {
		t.Errorf("health check %v: %v", serve.HealthCheck.Test, err)
	}
}
