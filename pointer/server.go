package pointer

import (
	"context"
	"fmt"
	"strings"
)

// serverSQL reads what the promises of this package rest on. Whether the role could write the
// tables is asked of one table of each kind; an owner and a superuser may always.
const serverSQL = `SELECT current_setting('fsync') = 'on', current_setting('synchronous_commit') <> 'off',
		current_setting('full_page_writes') = 'on', current_user,
		(SELECT rolsuper FROM pg_roles WHERE rolname = current_user),
		has_table_privilege('artifactd.pointer', 'UPDATE') OR has_table_privilege('artifactd.pointer', 'DELETE')
			OR has_table_privilege('artifactd.pointer', 'TRUNCATE') OR has_table_privilege('artifactd.generation', 'UPDATE')
			OR has_table_privilege('artifactd.operation', 'UPDATE') OR has_table_privilege('artifactd.operation', 'DELETE')`

// CheckServer reports why this database, used by this role, could not keep what a Catalogue
// promises: commits that are not durable when they are acknowledged, or a role that can write
// past the fence. It says everything at once, and what to do.
func (c *Catalogue) CheckServer(ctx context.Context) error {
	var fsync, synchronous, pages, super, writes bool
	var role string
	if err := c.pool.QueryRow(ctx, serverSQL).Scan(&fsync, &synchronous, &pages, &role, &super, &writes); err != nil {
		return readFault(err)
	}
	var faults []string
	if !fsync {
		faults = append(faults, "fsync is off: a crash of the server's machine can undo what was acknowledged; set fsync = on")
	}
	if !pages {
		faults = append(faults, "full_page_writes is off: a crash can corrupt pages; set full_page_writes = on")
	}
	if !synchronous {
		faults = append(faults, fmt.Sprintf("synchronous_commit is off for role %q: acknowledged commits can be lost; ALTER ROLE %s SET synchronous_commit = on", role, role))
	}
	if super || writes {
		faults = append(faults, fmt.Sprintf("role %q can write the tables past the fence; connect as a role that is only a member of the service role", role))
	}
	if len(faults) == 0 {
		return nil
	}
	return fmt.Errorf("this database cannot keep the service's promises: %s", strings.Join(faults, "; "))
}
