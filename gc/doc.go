// Package gc removes what nobody can publish or read any more.
//
// Garbage is decided by the fence, never by age: a generation is garbage exactly when it is
// unpublished and can no longer publish, or when it is displaced, unpinned and past its pointer's
// retention. The database's functions decide that under the same locks as a publish. A run then
// goes through these steps, each of them committed before the next:
//
//	mark     the generation becomes "collecting": it is not read, pinned, rolled back to or
//	         adopted from any more. A crash here: the next run goes on with the files.
//	files    the manifest's files go, unless another generation shares it; artifacts that no
//	         file names any more move to the deletion ledger in the same transaction. A crash
//	         here: the next run takes the rest of the files.
//	store    keys enter the ledger claimed by the collector that brings them there, and are deleted
//	         from the object store, outside of any transaction; then those of earlier runs that are
//	         due. A crash here: the claim runs out and the deletion is repeated.
//	ledger   a key leaves the ledger when the store confirmed a deletion made after the last
//	         moment at which an upload to it could still have landed. Before that moment it is
//	         deleted at once and once more later. A crash here: the deletion is repeated.
//
// The steps of different generations overlap. While somebody publishes they are small and run one at a
// time, with a rest after each, for the first five minutes of a run.
//
// Nothing else is ever deleted. Keys are never reused, so repeating a deletion is harmless.
package gc
