package miniostore

import (
	"context"
	"io"

	"github.com/minio/minio-go/v7"

	"github.com/artifactd/artifactd/artifacts"
	"github.com/artifactd/artifactd/artifacts/internal/bucket"
)

// checksumHeader carries a SHA-256 in base 64.
const checksumHeader = "X-Amz-Checksum-Sha256"

// Put implements [artifacts.BlobWriter]. Memory does not depend on the size of the body. A fault
// of the body is returned as what body.Read returned, not as a fault of the store.
func (s *Store) Put(ctx context.Context, u artifacts.Upload, body io.Reader) error {
	_, err := s.PutProving(ctx, u, body)
	return err
}

// PutProving implements [artifacts.BlobWriter].
func (s *Store) PutProving(ctx context.Context, u artifacts.Upload, body io.Reader) (artifacts.Digest, error) {
	return bucket.Put(ctx, driver{s}, u, body)
}

func (s driver) TryPut(ctx context.Context, u artifacts.Upload, body io.Reader) (told artifacts.Digest, attempts int, err error) {
	options := described(u)
	options.SetMatchETagExcept("*")
	options.UserMetadata[checksumHeader] = u.Digest.Base64()
	// The digest is the payload's hash of the signature as well, so nothing is hashed twice.
	out, err := s.core.PutObject(counted(ctx, &attempts), s.cfg.Bucket, u.Key, body, u.Size, "", u.Digest.Hex(), options)
	return bucket.FullChecksum(out.ChecksumSHA256, out.ChecksumMode), attempts, s.translate(ctx, "put", u.Key, err)
}

// described are the options of a request that makes an object: its type and metadata.
func described(u artifacts.Upload) minio.PutObjectOptions {
	options := minio.PutObjectOptions{
		ContentType:          u.ContentType,
		DisableContentSha256: true, // means: no signature for every chunk, which needs a rewritten body
		UserMetadata:         make(map[string]string, len(u.Metadata)+1),
	}
	for name, value := range u.Metadata {
		// With the prefix no name can be taken for another header.
		options.UserMetadata["X-Amz-Meta-"+name] = value
	}
	return options
}
