package artifacts

import (
	"context"
	"io"
	"time"
)

// Multipart names one upload in parts. Several may be in progress under one key; each has its own
// parts, and at most one of them becomes the object.
type Multipart struct {
	Key      string
	UploadID string
	// Initiated is the store's clock when the upload began, where a listing told it. It is never
	// a basis for a decision.
	Initiated time.Time
}

// Part is one part of an upload. A part that is sent again replaces the one before.
type Part struct {
	Number int   // 1 to MaxParts
	Size   int64 // bytes; see PlanParts
	// SHA256 is the part's own digest. In an answer it is zero where the store does not tell it.
	SHA256 Digest
}

// BlobMultiparter stores large objects in parts. Until the upload is completed nothing is stored
// under its key, but the parts take space: whoever creates an upload keeps its id and completes
// or aborts it.
//
// The store checks each part, and computes a checksum of the parts' checksums. Neither proves the
// whole: Head reports no SHA256 for such an object, and [ReadDigest] is the proof.
type BlobMultiparter interface {
	// CreateMultipart begins an upload of u, whose metadata and type the object will have, and
	// returns its id. When the answer is lost, an upload without parts may be left behind.
	// ErrNoMultipart where the store has no such thing.
	CreateMultipart(ctx context.Context, u Upload) (uploadID string, err error)
	// PutPart stores one part, p.Size bytes of body, whose digest is checked here and, where it
	// can, by the store. ErrUploadGone, ErrDigestMismatch, ErrSizeMismatch as said there.
	PutPart(ctx context.Context, m Multipart, p Part, body io.Reader) error
	// ListParts tells the parts that are there, by number. ErrUploadGone when the upload is not;
	// any other error means that the list is not known, never that it is shorter.
	ListParts(ctx context.Context, m Multipart) ([]Part, error)
	// CompleteMultipart makes u of its parts, which are all of them, numbered from 1. They are
	// compared with those that are there: ErrPartMismatch, ErrSizeMismatch. When it returns nil the
	// object is durable. If the upload is gone, or the answer to an earlier attempt was lost, the
	// object found under the key is compared with u and success is reported: completing twice is
	// completing once. ErrExists when another object was there first; the parts are then left to
	// be aborted. ErrUploadGone when the upload has to start over.
	CompleteMultipart(ctx context.Context, u Upload, uploadID string, parts []Part) error
	// AbortMultipart drops an upload and its parts; one that is gone already is no error. It asks
	// again until the store does not know the upload any more. A part whose PUT is still on its way may
	// come later: abort once more when no PUT can be running.
	AbortMultipart(ctx context.Context, m Multipart) error
}
