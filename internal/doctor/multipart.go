package doctor

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"github.com/artifactd/artifactd/artifacts"
)

// begin begins an upload of u in one part and remembers it.
func (x *examination) begin(ctx context.Context, u artifacts.Upload) (artifacts.Multipart, artifacts.Part, error) {
	if x.noMultipart {
		return artifacts.Multipart{}, artifacts.Part{}, errNotAsked
	}
	id, err := x.Store.CreateMultipart(ctx, u)
	if err != nil {
		return artifacts.Multipart{}, artifacts.Part{}, err
	}
	m := artifacts.Multipart{Key: u.Key, UploadID: id}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.uploads = append(x.uploads, m)
	return m, artifacts.Part{Number: 1, Size: u.Size, SHA256: u.Digest}, nil
}

// multipart takes one upload from beginning to end.
func (x *examination) multipart(ctx context.Context) (outcome, error) {
	u := x.object(text)
	m, part, err := x.begin(ctx, u)
	if errors.Is(err, artifacts.ErrNoMultipart) {
		x.noMultipart = true
		return outcome{Degraded, "there is none", "files of more than 64 MiB cannot be published"}, nil
	}
	if err != nil {
		return outcome{}, err
	}
	if err := x.Store.PutPart(ctx, m, part, bytes.NewReader(text)); err != nil {
		return outcome{}, err
	}
	parts, err := x.Store.ListParts(ctx, m)
	if err != nil {
		return outcome{}, err
	}
	if len(parts) != 1 || parts[0].Number != 1 || parts[0].Size != u.Size {
		return outcome{Missing, "a part that was stored is not listed", "large files cannot be completed"}, nil
	}
	if err := x.Store.CompleteMultipart(ctx, u, m.UploadID, []artifacts.Part{part}); err != nil {
		return outcome{}, err
	}
	got, err := x.read(ctx, u.Key, artifacts.WholeObject)
	switch {
	case err != nil:
		return outcome{}, err
	case !bytes.Equal(got, text):
		return outcome{Missing, "GET answers other bytes than the parts had", "large files cannot be published"}, nil
	case parts[0].SHA256.IsZero():
		return outcome{Degraded, "works; parts are listed without their SHA-256", "an interrupted upload sends all parts again"}, nil
	}
	return fine("works; parts are listed with their SHA-256"), nil
}

func (x *examination) tamperedPart(ctx context.Context) (outcome, error) {
	m, part, err := x.begin(ctx, x.object(text))
	if err != nil {
		return outcome{}, err
	}
	signed, err := x.Store.SignPart(ctx, m, part, urlTTL)
	if err != nil {
		return outcome{}, err
	}
	code, _, err := x.send(ctx, signed, text)
	if err != nil {
		return outcome{}, err
	}
	if code/100 != 2 {
		return outcome{}, fmt.Errorf("a signed PUT of a part, sent as it is, is answered with status %d", code)
	}
	if code, _, err = x.send(ctx, signed, another); err != nil {
		return outcome{}, err
	}
	if code/100 == 2 {
		return outcome{Degraded, "taken", "bytes go up through the service, which checks them"}, nil
	}
	return fine("refused"), nil
}

func (x *examination) abort(ctx context.Context) (outcome, error) {
	m, part, err := x.begin(ctx, x.object(text))
	if err != nil {
		return outcome{}, err
	}
	if err := x.Store.PutPart(ctx, m, part, bytes.NewReader(text)); err != nil {
		return outcome{}, err
	}
	if err := x.Store.AbortMultipart(ctx, m); err != nil {
		return outcome{}, err
	}
	if _, err := x.Store.ListParts(ctx, m); !errors.Is(err, artifacts.ErrUploadGone) {
		return outcome{Missing, "an aborted upload is still there", "the parts of uploads that were given up take space for ever"}, nil
	}
	return fine("the upload and its parts are gone"), nil
}

func (x *examination) listUploads(ctx context.Context) (outcome, error) {
	m, _, err := x.begin(ctx, x.object(text))
	if err != nil {
		return outcome{}, err
	}
	for found, err := range x.Store.ListMultiparts(ctx, x.folder) {
		if err != nil {
			return outcome{}, err
		}
		if found.Key == m.Key && found.UploadID == m.UploadID {
			return fine("an upload in progress is listed"), nil
		}
	}
	return outcome{Degraded, "an upload in progress is not listed", "those whose ids the database has are collected; give the bucket a rule that aborts old ones"}, nil
}

// concurrentCompletes has rivals, each with an upload of its own, complete one key at once.
func (x *examination) concurrentCompletes(ctx context.Context) (outcome, error) {
	key := x.object(nil).Key
	uploads, parts := make([]artifacts.Multipart, rivals), make([]artifacts.Part, rivals)
	for i := range rivals {
		var err error
		if uploads[i], parts[i], err = x.begin(ctx, x.objectAt(key, rivalBody(i))); err != nil {
			return outcome{}, err
		}
		if err := x.Store.PutPart(ctx, uploads[i], parts[i], bytes.NewReader(rivalBody(i))); err != nil {
			return outcome{}, err
		}
	}
	errs := make([]error, rivals)
	race(func(i int) {
		errs[i] = x.Store.CompleteMultipart(ctx, x.objectAt(key, rivalBody(i)), uploads[i].UploadID, parts[i:i+1])
	})
	won, faults := 0, 0
	for _, err := range errs {
		switch {
		case err == nil:
			won++
		case errors.Is(err, artifacts.ErrStoreUnavailable):
			faults++
		}
	}
	return raced(won, faults), nil
}
