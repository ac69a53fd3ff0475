package artifacts

import (
	"context"
	"errors"
	"io"
	"iter"
	"net/http"
	"time"
)

// Outcomes that a [Store] tells apart. Everything else is a fault of the store or of the way to
// it, and is wrapped in [ErrStoreUnavailable] when trying again later may help.
var (
	// ErrNotFound: no object has this key.
	ErrNotFound = errors.New("no such object")
	// ErrExists: an object has this key already and was left as it is.
	ErrExists = errors.New("object exists already")
	// ErrDigestMismatch: the bytes do not hash to the declared digest. Nothing was stored.
	ErrDigestMismatch = errors.New("the bytes do not match the declared digest")
	// ErrSizeMismatch: there were more or fewer bytes than declared. Nothing was stored.
	ErrSizeMismatch = errors.New("the bytes do not match the declared size")
	// ErrBadRange: the requested range lies outside the object.
	ErrBadRange = errors.New("range not satisfiable")
	// ErrUploadGone: the multipart upload does not exist, or can no longer be completed. Abort it
	// and begin another.
	ErrUploadGone = errors.New("no such multipart upload")
	// ErrPartMismatch: a part is missing, or is not the one that was declared. Nothing was stored.
	ErrPartMismatch = errors.New("the parts do not match the declared ones")
	// ErrNoMultipart: the store has no multipart uploads. Objects above MaxSinglePut cannot be
	// stored there.
	ErrNoMultipart = errors.New("the store has no multipart uploads")
	// ErrRetained: the store keeps the object for now (object lock or legal hold).
	ErrRetained = errors.New("the store retains this object")
	// ErrStoreFull: the store has no room for more bytes.
	ErrStoreFull = errors.New("the store has no space left: free some, or raise the quota")
	// ErrStoreDenied: the store refuses the credentials, which may have expired, or denies them a right.
	ErrStoreDenied = errors.New("the store refused access: check the access key, that it has not expired, and that it may read, write, list and delete in the bucket")
	// ErrStoreUnavailable: the store did not answer, or answered that it cannot now.
	ErrStoreUnavailable = errors.New("object store unavailable")
)

// Object is what a store says of one object.
type Object struct {
	Key  string
	Size int64 // bytes
	// SHA256 is the store's own full-object checksum, or zero where it has none. A composite
	// checksum of a multipart upload is not reported here: it proves nothing about the whole.
	SHA256       Digest
	ContentType  string
	Metadata     map[string]string // lower-case keys, without the x-amz-meta- prefix
	LastModified time.Time         // the store's clock; never a basis for a decision
}

// Upload describes bytes about to be stored under a key of their own.
type Upload struct {
	Key         string
	Digest      Digest
	Size        int64 // bytes, up to MaxSinglePut in one PUT and MaxObject in parts
	ContentType string
	Metadata    map[string]string
}

// ByteRange is a part of an object, in bytes. Length < 0 means "to the end"; the zero value with
// Length -1 is the whole object (see [WholeObject]).
type ByteRange struct{ Offset, Length int64 }

// WholeObject asks for every byte.
var WholeObject = ByteRange{Offset: 0, Length: -1}

// SignedRequest is a request that anybody who holds it may send until it expires. Its headers
// are part of the signature and must be sent as they are.
type SignedRequest struct {
	Method    string
	URL       string
	Header    http.Header
	ExpiresAt time.Time // by this process's clock
}

// ReadDisposition is how a presigned read should be presented to a browser.
type ReadDisposition struct {
	ContentType        string
	ContentDisposition string
}

// Deleted is the fate of one key of a batch: Err is nil when the store confirmed that the key
// holds no bytes any more (which includes that it never did).
type Deleted struct {
	Key string
	Err error
}

// Store is the port to an object store. Keys are whole keys; the prefix is already in them.
// Every method is safe for concurrent use, retries what is safe to retry within bounds, and
// returns the context's error when the context ended first.
type Store interface {
	BlobReader
	BlobWriter
	BlobMultiparter
	BlobSigner
	BlobDeleter
	BlobLister
}

// BlobReader reads objects.
type BlobReader interface {
	// Head tells of an object without its bytes, the store's checksum included if it has one.
	// ErrNotFound when there is none.
	Head(ctx context.Context, key string) (Object, error)
	// Get opens an object or a part of it. The returned Object has the whole object's size. The
	// reader fails rather than end early: io.EOF means that every byte of the range was read.
	Get(ctx context.Context, key string, r ByteRange) (io.ReadCloser, Object, error)
}

// BlobWriter stores objects.
type BlobWriter interface {
	// Put stores exactly u.Size bytes of body under a key that was never used. When it returns
	// nil, the object is durable and the store has checked its SHA-256 where it can. If the
	// answer to an earlier attempt of this same call was lost, the object found is compared and
	// success is reported once. ErrExists, ErrDigestMismatch, ErrSizeMismatch as said there.
	Put(ctx context.Context, u Upload, body io.Reader) error
	// PutProving is Put, and returns the full-object SHA-256 that the store's own answer tells: zero
	// where it tells none, for example because that answer was lost. Equal to u.Digest it proves the
	// object as Head would.
	PutProving(ctx context.Context, u Upload, body io.Reader) (Digest, error)
}

// BlobSigner signs requests that others send straight to the store.
type BlobSigner interface {
	// SignPut signs the one PUT that u describes. Length, type, SHA-256, metadata and
	// If-None-Match are signed, so the holder can store those bytes and nothing else.
	SignPut(ctx context.Context, u Upload, ttl time.Duration) (SignedRequest, error)
	// SignGet signs a GET of the object.
	SignGet(ctx context.Context, key string, d ReadDisposition, ttl time.Duration) (SignedRequest, error)
	// SignPart signs the one PUT of a part. Its length and SHA-256 are signed.
	SignPart(ctx context.Context, m Multipart, p Part, ttl time.Duration) (SignedRequest, error)
	// EnforcesSignedDigest reports whether the store refuses presigned PUTs, of objects and of
	// parts, whose bytes do not hash to the signed SHA-256. It asks the store by trying, once, and
	// remembers the answer. On a store that does not, bytes must go through the service.
	EnforcesSignedDigest(ctx context.Context) (bool, error)
}

// BlobDeleter removes objects.
type BlobDeleter interface {
	// Delete removes keys, at most 1,000, all versions of them where the bucket is versioned. It
	// returns one Deleted a key, in the order asked; an error means that the fate of none is known.
	Delete(ctx context.Context, keys []string) ([]Deleted, error)
}

// BlobLister walks the bucket.
type BlobLister interface {
	// List yields the objects under prefix in key order, whatever their number. An error ends the
	// sequence: a listing that was cut short is never mistaken for a complete one.
	List(ctx context.Context, prefix string) iter.Seq2[Object, error]
	// ListMultiparts yields the multipart uploads in progress under prefix, in no order. An error
	// ends the sequence. What is not listed may exist all the same: MinIO knows only the uploads
	// that were begun since it started. Keep upload ids; this is for those that were lost.
	ListMultiparts(ctx context.Context, prefix string) iter.Seq2[Multipart, error]
}
