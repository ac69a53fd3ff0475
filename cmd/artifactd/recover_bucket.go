package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/artifactd/artifactd/internal/daemon"
	"github.com/artifactd/artifactd/pointer"
	"github.com/artifactd/artifactd/recovery"
)

// fromBucket is what `artifactd recover --from-bucket` was asked for.
type fromBucket struct {
	wanted, all, dry, deep bool
	pointers               []string
}

func (f *fromBucket) bind(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&f.wanted, "from-bucket", false, "find versions in the bucket that the database lost, and bring them back (as the owner of the tables)")
	cmd.Flags().BoolVar(&f.all, "all", false, "bring back everything that was lost")
	cmd.Flags().StringSliceVar(&f.pointers, "pointer", nil, "bring back what this pointer lost; may be repeated")
	cmd.Flags().BoolVar(&f.dry, "dry-run", false, "only list what was lost")
	cmd.Flags().BoolVar(&f.deep, "deep", false, "read and hash every object, too")
}

func (f *fromBucket) check() error {
	switch {
	case !f.wanted && (f.all || f.dry || f.deep || len(f.pointers) > 0):
		return errors.New("--all, --pointer, --dry-run and --deep go with --from-bucket")
	case f.all && len(f.pointers) > 0:
		return errors.New("give --all or --pointer, not both")
	}
	return nil
}

// maxLost bounds the list that is printed; all are counted.
const maxLost = 1_000

// lostReport is what is printed of a run.
type lostReport struct {
	recovery.RebuildReport
	Versions       []recovery.LostVersion  `json:"versions"`
	SettingsOf     []recovery.LostSettings `json:"settings_of"`
	ListsTruncated bool                    `json:"lists_truncated"`
}

// adoptBucket makes an empty database the bucket's installation, when a person agrees. In a dry run
// it reports that the database would have to become that first.
func (p *Program) adoptBucket(ctx context.Context, m *daemon.Maintenance, answers *bufio.Reader, o recovering) (foreign bool, err error) {
	if !o.bucket.wanted {
		return false, nil
	}
	rebuild := m.Rebuild(recovery.RebuildOptions{})
	if foreign, err = rebuild.Foreign(ctx); err != nil || !foreign || o.bucket.dry {
		return foreign, err
	}
	question := "This database is empty. Make it the one of the bucket's installation? No other database of that must go on."
	if !o.yes && !p.agrees(answers, question) {
		return false, fmt.Errorf("%w: nothing was changed; answer yes, or give --yes", errPartial)
	}
	if _, err := rebuild.Adopt(ctx); err != nil {
		return false, err
	}
	p.note("artifactd: the database belongs to the bucket's installation now; what it lacks is brought back after its epoch is raised")
	return false, nil
}

// bringBack lists what the database lost, and brings back what was chosen.
func (p *Program) bringBack(ctx context.Context, m *daemon.Maintenance, answers *bufio.Reader, o recovering) error {
	if !o.bucket.wanted {
		return nil
	}
	// What this database has and the bucket does not is not lost; then its records tell who is newer.
	if !o.bucket.dry {
		if err := m.DrainRecords(ctx); err != nil {
			return err
		}
	}
	lost, err := p.lost(ctx, m, recovery.RebuildOptions{DryRun: true, Deep: o.bucket.deep, Pointers: o.bucket.pointers})
	if err != nil || o.bucket.dry || lost.Lost+lost.Settings == 0 {
		return err
	}
	if !o.bucket.all && len(o.bucket.pointers) == 0 {
		p.note("artifactd: choose what to bring back with --all or --pointer NAME")
		return nil
	}
	question := fmt.Sprintf("Bring back %d versions and the settings of %d pointers?", lost.Lost-lost.Skipped, lost.Settings)
	if !o.yes && !p.agrees(answers, question) {
		return fmt.Errorf("%w: nothing was brought back; answer yes, or give --yes", errPartial)
	}
	back, err := p.lost(ctx, m, recovery.RebuildOptions{Deep: o.bucket.deep, Pointers: o.bucket.pointers})
	switch {
	case errors.Is(err, pointer.ErrEpochNotRaised):
		return fmt.Errorf("%w; give --raise", err)
	case err != nil:
		return fmt.Errorf("%w; what was brought back stays, run it again for the rest", err)
	case back.Skipped > 0:
		return fmt.Errorf("%w: %d lost versions were not brought back; see the reasons above", errPartial, back.Skipped)
	}
	return nil
}

// lost makes a run and prints what it found.
func (p *Program) lost(ctx context.Context, m *daemon.Maintenance, o recovery.RebuildOptions) (lostReport, error) {
	l := lostReport{Versions: []recovery.LostVersion{}, SettingsOf: []recovery.LostSettings{}}
	o.Version = func(v recovery.LostVersion) {
		if l.ListsTruncated = len(l.Versions) == maxLost; !l.ListsTruncated {
			l.Versions = append(l.Versions, v)
		}
	}
	o.Settings = func(s recovery.LostSettings) {
		if len(l.SettingsOf) < maxLost {
			l.SettingsOf = append(l.SettingsOf, s)
		}
	}
	var err error
	l.RebuildReport, err = m.Rebuild(o).Run(ctx)
	if err != nil && len(l.Versions)+len(l.SettingsOf) == 0 {
		return l, err // noughts would read as if nothing were lost
	}
	if printed := p.print(l, func(t *table) { lostTable(t, l) }); printed != nil {
		return l, printed
	}
	return l, err
}

func lostTable(t *table, l lostReport) {
	t.row("POINTER", "VERSION", "PUBLISHED", "FILES", "SIZE", "STATE", "NOW", "NOTE")
	for _, s := range l.SettingsOf {
		t.row(s.Pointer, "(settings)", "-", "-", "-", settingsState(s), "-", s.Problem)
	}
	for _, v := range l.Versions {
		published, now := "-", "-"
		if !v.PublishedAt.IsZero() {
			published = stamp(v.PublishedAt)
		}
		if !v.Restored.IsZero() {
			now = v.Restored.String()
		}
		t.row(v.Pointer, v.Token, published, v.Files, size(v.Bytes), v.Status, now, v.Detail)
	}
	if l.ListsTruncated {
		t.row("…", "and more")
	}
	t.row("records in the bucket", l.Records)
	t.row("lost", l.Lost, size(l.LostBytes))
	t.row("brought back", l.Restored)
	t.row("skipped", l.Skipped)
	t.row("keys that are no records", l.Foreign)
}

func settingsState(s recovery.LostSettings) string {
	switch {
	case s.Problem != "":
		return "damaged"
	case s.Restored:
		return "restored"
	case s.Made:
		return "pointer lost"
	}
	return "older"
}
