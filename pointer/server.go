package pointer

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
)

const (
	durabilitySQL = `SELECT current_setting('fsync') = 'on', current_setting('synchronous_commit') <> 'off',
			current_setting('full_page_writes') = 'on', current_user`
	// Whether the role could write the tables is asked of those that decide; an owner and a
	// superuser may always.
	roleSQL = `SELECT current_user, (SELECT rolsuper FROM pg_roles WHERE rolname = current_user) OR EXISTS (
			SELECT 1 FROM unnest(ARRAY['pointer', 'generation', 'operation', 'installation', 'artifact', 'manifest_file', 'counter']) t
			WHERE has_table_privilege('artifactd.' || t, 'INSERT') OR has_table_privilege('artifactd.' || t, 'UPDATE')
				OR has_table_privilege('artifactd.' || t, 'DELETE') OR has_table_privilege('artifactd.' || t, 'TRUNCATE'))`
)

// CheckDurability reports why this server, for this role, may lose commits that it acknowledged.
// It says everything at once, and what to do.
func (c *Catalogue) CheckDurability(ctx context.Context) error {
	var fsync, synchronous, pages bool
	var role string
	if err := c.pool.QueryRow(ctx, durabilitySQL).Scan(&fsync, &synchronous, &pages, &role); err != nil {
		return readFault(err)
	}
	var faults []string
	if !fsync {
		faults = append(faults, "fsync=off: set fsync = on")
	}
	if !pages {
		faults = append(faults, "full_page_writes=off: set full_page_writes = on")
	}
	if !synchronous {
		faults = append(faults, fmt.Sprintf("synchronous_commit=off: ALTER ROLE %s SET synchronous_commit = on", pgx.Identifier{role}.Sanitize()))
	}
	if len(faults) == 0 {
		return nil
	}
	return fmt.Errorf("this database may lose acknowledged commits (%s)", strings.Join(faults, "; "))
}

// CheckRole reports that the role of this pool could write the tables past the fence.
func (c *Catalogue) CheckRole(ctx context.Context) error {
	var role string
	var writes bool
	if err := c.pool.QueryRow(ctx, roleSQL).Scan(&role, &writes); err != nil {
		return readFault(err)
	}
	if writes {
		return fmt.Errorf("database role %q can write the tables past the fence; connect as a role that is only a member of the service's role, which \"artifactd migrate\" makes", role)
	}
	return nil
}
