package client

import (
	"bytes"
	"testing"
	"time"
)

// What the connection still reads when the answer is here counts for nobody any more.
func TestProgressAfterTheAnswer(t *testing.T) {
	for name, want := range map[string]int64{"taken back": 0, "finished": 100} {
		var sum int64
		_, idle := stopWhenIdle(t.Context(), time.Hour, "host")
		defer idle.end()
		b := newCountedBody(bytes.NewReader(make([]byte, 100)), 100, func(n int64) { sum += n }, idle)
		read := func() {
			if n, err := b.Read(make([]byte, 30)); n != 30 || err != nil {
				t.Fatal(n, err)
			}
		}
		read()
		if sum != 30 {
			t.Errorf("%d bytes are told of 30", sum)
		}
		if want == 0 {
			b.takeBack()
		} else {
			b.finish()
		}
		read()
		if sum != want {
			t.Errorf("%s: %d bytes are told, want %d", name, sum, want)
		}
	}
}
