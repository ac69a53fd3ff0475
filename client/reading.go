package client

import (
	"context"
	"iter"
	"net/http"

	"github.com/artifactd/artifactd/api/types"
)

// pageSize is the largest page the service gives.
const pageSize = 1000

// Resolve answers the current version of a pointer. Its files are read by their pinned URLs
// ([Client.Download]), so that one reader never mixes versions; a version of more than 1,000 files
// says so (FilesTruncated), and [Client.Files] has the rest.
func (c *Client) Resolve(ctx context.Context, pointer string) (types.ResolvedVersion, error) {
	return get[types.ResolvedVersion](ctx, c, func(ctx context.Context) (*http.Response, error) {
		return c.raw.ResolvePointer(ctx, pointer, nil)
	})
}

// Files walks the files of a version by path. An error ends the walk.
func (c *Client) Files(ctx context.Context, pointer, version string) iter.Seq2[types.File, error] {
	return walk(func(cursor *string) ([]types.File, *string, error) {
		page, err := get[types.FilePage](ctx, c, func(ctx context.Context) (*http.Response, error) {
			limit := pageSize
			return c.raw.ListVersionFiles(ctx, pointer, version, &types.ListVersionFilesParams{Limit: &limit, Cursor: cursor})
		})
		return page.Items, page.NextCursor, err
	})
}

// History walks a pointer's generations, newest first. An error ends the walk.
func (c *Client) History(ctx context.Context, pointer string) iter.Seq2[types.Generation, error] {
	return walk(func(cursor *string) ([]types.Generation, *string, error) {
		page, err := get[types.GenerationPage](ctx, c, func(ctx context.Context) (*http.Response, error) {
			return c.raw.ListVersions(ctx, pointer, &types.ListVersionsParams{Cursor: cursor})
		})
		return page.Items, page.NextCursor, err
	})
}

// Pointers walks the pointers whose names begin with prefix. An error ends the walk.
func (c *Client) Pointers(ctx context.Context, prefix string) iter.Seq2[types.PointerItem, error] {
	return walk(func(cursor *string) ([]types.PointerItem, *string, error) {
		page, err := get[types.PointerPage](ctx, c, func(ctx context.Context) (*http.Response, error) {
			params := types.ListPointersParams{Cursor: cursor}
			if prefix != "" {
				params.Prefix = &prefix
			}
			return c.raw.ListPointers(ctx, &params)
		})
		return page.Items, page.NextCursor, err
	})
}

// walk turns a paged call into a sequence.
func walk[T any](page func(cursor *string) ([]T, *string, error)) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		var cursor *string
		for {
			items, next, err := page(cursor)
			if err != nil {
				var zero T
				yield(zero, err)
				return
			}
			for _, item := range items {
				if !yield(item, nil) {
					return
				}
			}
			if next == nil || *next == "" {
				return
			}
			cursor = next
		}
	}
}

// PutPointer creates a pointer or changes its settings; members that are nil stay as they are.
func (c *Client) PutPointer(ctx context.Context, name string, settings types.PutPointerRequest) (types.PointerSettings, error) {
	return get[types.PointerSettings](ctx, c, func(ctx context.Context) (*http.Response, error) {
		return c.raw.PutPointer(ctx, name, settings)
	})
}

// PointerSettings answers a pointer's settings.
func (c *Client) PointerSettings(ctx context.Context, name string) (types.PointerSettings, error) {
	return get[types.PointerSettings](ctx, c, func(ctx context.Context) (*http.Response, error) {
		return c.raw.GetPointerSettings(ctx, name)
	})
}

// RetirePointer ends a pointer's lease and clears what it shows. currentToken is what the caller
// believes is shown; empty when nothing ever was. It is not repeated when its answer is lost: the
// second answer would be about a pointer that is retired already.
func (c *Client) RetirePointer(ctx context.Context, name, currentToken string) error {
	params := types.RetirePointerParams{}
	if currentToken != "" {
		params.CurrentToken = &currentToken
	}
	_, err := askRefused(ctx, c, 0, func(ctx context.Context) (struct{}, error) { return nothing(c.raw.RetirePointer(ctx, name, &params)) })
	return err
}

// Ready asks the service once whether it can do its work.
func (c *Client) Ready(ctx context.Context) (types.Health, error) {
	return answer[types.Health](c.raw.GetReadiness(ctx))
}
