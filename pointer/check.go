package pointer

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

var nameForm = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,199}$`)

// cmpErr is the first of the errors that is not nil.
func cmpErr(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// CheckName reports what is wrong with a pointer's name, as an [*InvalidError].
func CheckName(name string) error {
	if !nameForm.MatchString(name) {
		return &InvalidError{Field: "name", Detail: "a pointer's name begins with a letter or digit, goes on with letters, digits, '.', '_' or '-', and has at most 200 characters"}
	}
	return nil
}

func checkHolder(holder string) error {
	if holder == "" || len(holder) > MaxHolderBytes || !utf8.ValidString(holder) || strings.ContainsFunc(holder, unicode.IsControl) {
		return &InvalidError{Field: "holder", Detail: fmt.Sprintf("a holder is 1 to %d bytes of UTF-8 without control characters", MaxHolderBytes)}
	}
	return nil
}

func checkTTL(ttl time.Duration) error {
	if ttl < MinTTL || ttl > MaxTTL {
		return &InvalidError{Field: "ttl_seconds", Detail: fmt.Sprintf("a lease lives %g to %g seconds between renewals", MinTTL.Seconds(), MaxTTL.Seconds())}
	}
	return nil
}

// CheckPath reports what is wrong with a path of a manifest, as an [*InvalidError] on field.
func CheckPath(field, path string) error {
	invalid := func(detail string) error { return &InvalidError{Field: field, Detail: detail} }
	switch {
	case path == "":
		return invalid("a path cannot be empty")
	case len(path) > MaxPathBytes:
		return invalid(fmt.Sprintf("a path has at most %d bytes", MaxPathBytes))
	case !utf8.ValidString(path):
		return invalid("a path is UTF-8")
	case strings.ContainsFunc(path, unicode.IsControl):
		return invalid("a path has no control characters")
	}
	for segment := range strings.SplitSeq(path, "/") {
		if segment == "" || segment == "." || segment == ".." {
			return invalid(`a path is relative, and none of its "/"-separated segments is empty, "." or ".."`)
		}
	}
	return nil
}

func checkMetadata(field string, metadata json.RawMessage) error {
	if len(metadata) > MaxMetadataBytes {
		return &InvalidError{Field: field, Detail: fmt.Sprintf("metadata is at most %d bytes of JSON", MaxMetadataBytes)}
	}
	if len(metadata) > 0 && (!json.Valid(metadata) || strings.Contains(string(metadata), `\u0000`)) {
		return &InvalidError{Field: field, Detail: `metadata is JSON without \u0000`}
	}
	return nil
}

func checkLabels(labels map[string]string) error {
	if len(labels) > MaxLabels {
		return &InvalidError{Field: "labels", Detail: fmt.Sprintf("at most %d labels", MaxLabels)}
	}
	for k, v := range labels {
		if k == "" || len(k) > 200 || len(v) > 1000 || strings.ContainsRune(k+v, 0) || !utf8.ValidString(k+v) {
			return &InvalidError{Field: "labels", Detail: "a label's key is 1 to 200 bytes and its value at most 1,000 bytes of UTF-8 without NUL"}
		}
	}
	return nil
}
