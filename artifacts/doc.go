// Package artifacts knows what an artifact is: immutable bytes, their SHA-256 digest, and the
// one object key they are stored under.
//
// Bytes never become visible by being written. A key names one upload by one generation of one
// pointer and is never used again, so a PUT or a DELETE that a paused process sends too late can
// only touch its own object. What readers may see is decided in package pointer, by one row of
// the database; this package says how bytes are named, moved and proved.
//
// An object above SinglePutSize is sent in parts, which can be resumed and go in parallel
// ([PlanParts], [BlobMultiparter]). No store has a SHA-256 of such an object that proves more than
// its parts, so it is read back ([ReadDigest]).
//
// [Store] is the port to the object store. Its drivers are the packages s3store (aws-sdk-go-v2)
// and miniostore (minio-go); both are held to the same conformance suite, package storetest. No
// driver is imported outside the wiring in internal/daemon.
package artifacts
