-- +goose Up
-- What the bucket has and the database does not know can be asked by the service's role too: an
-- operator looks at it before anything is decided. Nothing is written.
ALTER FUNCTION artifactd.unknown_keys(text[], text[]) SECURITY DEFINER;

-- +goose Down
ALTER FUNCTION artifactd.unknown_keys(text[], text[]) SECURITY INVOKER;
