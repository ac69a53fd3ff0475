package api

import (
	"errors"
	"net/http"
	"testing"
)

func TestRequestedSpan(t *testing.T) {
	const etag = `"sha256:aa"`
	whole, none := span{}, errRangeNotSatisfied
	for _, tc := range []struct {
		header, ifRange string
		size            int64
		want            span
		partial         bool
		err             error
	}{
		{header: "", size: 10, want: whole},
		{header: "bytes=0-0", size: 10, want: span{0, 1}, partial: true},
		{header: "bytes=0-9", size: 10, want: span{0, 10}, partial: true},
		{header: "bytes=3-", size: 10, want: span{3, 7}, partial: true},
		{header: "bytes=3-100", size: 10, want: span{3, 7}, partial: true},
		{header: "bytes=9-9", size: 10, want: span{9, 1}, partial: true},
		{header: "Bytes = 2-4", size: 10, want: span{2, 3}, partial: true},
		{header: "bytes=-3", size: 10, want: span{7, 3}, partial: true},
		{header: "bytes=-100", size: 10, want: span{0, 10}, partial: true},
		{header: "bytes=2-99999999999999999999", size: 10, want: span{2, 8}, partial: true},
		{header: "bytes=10-", size: 10, err: none},
		{header: "bytes=99999999999999999999-", size: 10, err: none},
		{header: "bytes=-0", size: 10, err: none},
		{header: "bytes=0-", size: 0, err: none},
		{header: "bytes=-5", size: 0, want: whole},
		{header: "bytes=5-3", size: 10, want: whole},
		{header: "bytes=0-1,3-4", size: 10, want: whole},
		{header: "bytes=a-b", size: 10, want: whole},
		{header: "bytes=+1-2", size: 10, want: whole},
		{header: "bytes=--2", size: 10, want: whole},
		{header: "bytes=-", size: 10, want: whole},
		{header: "bytes=", size: 10, want: whole},
		{header: "bytes", size: 10, want: whole},
		{header: "lines=0-1", size: 10, want: whole},
		{header: "bytes=0-0", ifRange: etag, size: 10, want: span{0, 1}, partial: true},
		{header: "bytes=0-0", ifRange: `"sha256:bb"`, size: 10, want: whole},
		{header: "bytes=0-0", ifRange: "W/" + etag, size: 10, want: whole},
		{header: "bytes=99-", ifRange: `"sha256:bb"`, size: 10, want: whole},
		{header: "bytes=0-0", ifRange: "Wed, 21 Oct 2015 07:28:00 GMT", size: 10, want: whole},
	} {
		h := http.Header{}
		if tc.header != "" {
			h.Set("Range", tc.header)
		}
		if tc.ifRange != "" {
			h.Set("If-Range", tc.ifRange)
		}
		got, partial, err := requestedSpan(h, etag, tc.size)
		if got != tc.want || partial != tc.partial || !errors.Is(err, tc.err) {
			t.Errorf("Range %q If-Range %q of %d bytes: %v %v %v, want %v %v %v", tc.header, tc.ifRange, tc.size, got, partial, err, tc.want, tc.partial, tc.err)
		}
	}
}

func TestNoneMatch(t *testing.T) {
	const etag = `"3.42"`
	for _, tc := range []struct {
		values []string
		want   bool
	}{
		{nil, false},
		{[]string{`"3.42"`}, true},
		{[]string{`W/"3.42"`}, true},
		{[]string{`"3.41", "3.42"`}, true},
		{[]string{`"3.41"`, `"3.42"`}, true},
		{[]string{`"a,b" , W/"3.42"`}, true},
		{[]string{`*`}, true},
		{[]string{`3.42`}, false},
		{[]string{`3.42, "3.42"`}, true},
		{[]string{`"3.42`}, false},
		{[]string{`"3.4", "42"`}, false},
		{[]string{``, `,,`}, false},
	} {
		if got := noneMatch(http.Header{"If-None-Match": tc.values}, etag); got != tc.want {
			t.Errorf("If-None-Match %q: %v, want %v", tc.values, got, tc.want)
		}
	}
}
