// Package artifacts knows what an artifact is: immutable bytes, their SHA-256 digest, and the
// one object key they are stored under.
//
// Bytes never become visible by being written. A key names one upload by one generation of one
// pointer and is never used again, so a PUT or a DELETE that a paused process sends too late can
// only touch its own object. What readers may see is decided in package pointer, by one row of
// the database; this package says how bytes are named, moved and proved.
//
// [Store] is the port to the object store. Its drivers are the packages s3store (aws-sdk-go-v2)
// and miniostore (minio-go); both are held to the same conformance suite, package storetest. No
// driver is imported outside the wiring in internal/daemon.
package artifacts
