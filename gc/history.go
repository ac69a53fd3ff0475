package gc

import (
	"errors"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/artifactd/artifactd/pointer"
)

// historyFault recognises that the database refuses to collect because its history changed, or
// because no operator has acknowledged yet that it did.
func historyFault(err error) error {
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) && (pgErr.Code == "AD001" || pgErr.Code == "AD002") {
		return &pointer.HistoryChangedError{Seen: pgErr.Message, Operator: pgErr.Code == "AD002"}
	}
	return err
}
