package recovery

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/google/uuid"

	"github.com/artifactd/artifactd/artifacts"
	"github.com/artifactd/artifactd/pointer"
)

// errForeignKey says that an object's key is not one of a record.
var errForeignKey = errors.New("the key is not one of a record")

// The folders of the records. Their keys are made by the database too (migrations/00009_outbox.sql).
const versionsFolder, pointersFolder, operationsFolder = "versions/", "pointers/", "operations/"

// recordKey is what the key of a version's or a pointer's record tells.
type recordKey struct {
	Pointer string
	// Token of the version; of a pointer's settings their epoch and revision. Both are padded in the
	// key, so that it sorts as they do.
	Token pointer.Token
	// ID keeps records apart that two histories wrote for the same token.
	ID uuid.UUID
}

func (k recordKey) in(layout artifacts.Layout, folder string) string {
	return fmt.Sprintf("%s%s%s/%010d.%015d.%s", layout.Prefix, folder, k.Pointer, k.Token.Epoch, k.Token.Generation, k.ID)
}

func parseRecordKey(layout artifacts.Layout, folder, key string) (recordKey, error) {
	rest, ok := strings.CutPrefix(key, layout.Prefix+folder)
	name, last, found := strings.Cut(rest, "/")
	parts := strings.Split(last, ".")
	if !ok || !found || len(parts) != 3 {
		return recordKey{}, errForeignKey
	}
	epoch, err1 := strconv.ParseInt(parts[0], 10, 64)
	number, err2 := strconv.ParseInt(parts[1], 10, 64)
	id, err3 := uuid.Parse(parts[2])
	k := recordKey{Pointer: name, Token: pointer.Token{Epoch: epoch, Generation: number}, ID: id}
	if err1 != nil || err2 != nil || err3 != nil || epoch < 1 || number < 1 || k.in(layout, folder) != key {
		return recordKey{}, errForeignKey
	}
	return k, nil
}

// operationKey is the key of an aborted operation's record. It says all that the record says.
func operationKey(layout artifacts.Layout, operation uuid.UUID, name string) string {
	return layout.Prefix + operationsFolder + operation.String() + "/" + name
}

func parseOperationKey(layout artifacts.Layout, key string) (operation uuid.UUID, name string, err error) {
	rest, ok := strings.CutPrefix(key, layout.Prefix+operationsFolder)
	id, name, found := strings.Cut(rest, "/")
	operation, err = uuid.Parse(id)
	if !ok || !found || err != nil || name == "" || operationKey(layout, operation, name) != key {
		return uuid.Nil, "", errForeignKey
	}
	return operation, name, nil
}
