package client

import (
	"encoding/xml"
	"fmt"
	"io"
	"net/http"
)

// StoreError is an answer of the object store, other than success, to a presigned request.
type StoreError struct {
	Status int    // HTTP status
	Code   string // the store's own code, "BadDigest" for example; empty when it gave none
	Host   string
}

func (e *StoreError) Error() string {
	if e.Code == "" {
		return fmt.Sprintf("the object store at %s answered %d %s", e.Host, e.Status, http.StatusText(e.Status))
	}
	return fmt.Sprintf("the object store at %s answered %d %s", e.Host, e.Status, e.Code)
}

// Is tells a refused checksum, which is about the bytes, from other refusals.
func (e *StoreError) Is(target error) bool {
	return target == ErrDigestMismatch && (e.Code == "BadDigest" || e.Code == "XAmzContentSHA256Mismatch" || e.Code == "InvalidDigest")
}

// stale reports whether a signed request may have been refused for its age: its own, or that of the
// credentials it was signed with. A fresh one may be taken.
func (e *StoreError) stale() bool {
	return e.Status == http.StatusForbidden || e.Code == "ExpiredToken"
}

// temporary reports whether the same request may succeed later.
func (e *StoreError) temporary() bool {
	switch e.Status {
	case http.StatusConflict, http.StatusRequestTimeout, http.StatusTooManyRequests,
		http.StatusInternalServerError, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return true
	}
	return e.Code == "RequestTimeout" || e.Code == "SlowDown"
}

// storeError reads the store's XML error document.
func storeError(resp *http.Response) *StoreError {
	e := &StoreError{Status: resp.StatusCode, Host: resp.Request.URL.Host}
	var doc struct {
		Code string `xml:"Code"`
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxProblem))
	if err == nil && xml.Unmarshal(body, &doc) == nil {
		e.Code = doc.Code
	}
	return e
}
