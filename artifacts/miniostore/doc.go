// Package miniostore is the [artifacts.Store] on minio-go. It works with MinIO, with Amazon S3 and
// with the stores that speak its protocol, and behaves like package s3store in every respect that
// package storetest can see.
//
// # Where it does not take minio-go's word
//
//   - Its high-level PutObject switches to multipart uploads, buffers what has no size, and drops
//     If-None-Match when it completes: only the calls of minio.Core are used.
//   - It takes a listing that does not say whether it is complete for a complete one, and one that
//     was cancelled too. The answers to listings are checked on the way in (see [guard]).
//   - It sends requests unsigned when it finds no credentials. Here that is an error.
//   - Its batch deletion keeps quiet about some refusals. A key that is not mentioned counts as
//     not deleted.
//
// Bodies are hashed while they pass, as in package s3store.
package miniostore
