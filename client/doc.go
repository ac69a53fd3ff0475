// Package client is the Go client of artifactd: it takes leases and keeps them, stages and uploads
// files, publishes them and reads published versions back.
//
// # Working under a lease
//
// A worker acquires a lease, keeps it with [Client.Keep], stages and uploads its files under the
// context that the keeper gives it, and publishes. That context ends before the lease does, counted
// from the moment the last successful renewal was sent, so a worker that was cut off stops by
// itself. This saves work and is no safety: the service refuses whoever comes too late, however
// sure that worker is of its lease. [Client.PublishFiles] does all of it in one call.
//
// # Outcomes that nobody heard
//
// A publish carries an operation id. When the answer is lost, the client asks again with the same
// id, and settles the operation when that gives no answer either, so a caller gets [ErrOutcomeUnknown]
// only when the service could not be reached for as long as the client was willing to try.
//
// # Errors
//
// Whatever the service refuses is a [*Problem]; errors.Is tells its code:
//
//	if errors.Is(err, client.ErrLeaseHeld) { … }
//
// Calls that are safe to repeat are repeated, within bounds, when the connection breaks or the
// service answers that it cannot now; others are not.
package client
