package main

import (
	"bytes"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"sync"

	"github.com/artifactd/artifactd/artifacts"
	"github.com/artifactd/artifactd/pointer"
)

// blob is the content of a file. Its bytes can be made again at any time, so that whatever is read
// can be compared, and nothing has to be kept.
type blob struct {
	seed uint64
	size int
}

func (b blob) bytes() []byte {
	text := make([]byte, b.size)
	_, _ = seeded(b.seed, b.size).Read(text) // a generator in memory does not fail
	return text
}

// manifest is the files of a version by their paths.
type manifest map[string]artifacts.Digest

// shelf is a pointer with short retention whose versions hold real files. A publisher says what a
// version is to hold before it asks for it to be published; a reader may see it before it is told.
type shelf struct {
	name         string
	index        int // among the campaign's names
	keepVersions int
	keepSeconds  int

	mu       sync.Mutex
	versions map[pointer.Token]manifest // what each was meant to hold
	early    map[pointer.Token]manifest // what a reader saw of a version that nobody had claimed yet
	pinned   map[pointer.Token]bool     // a pin was acknowledged, and nobody has asked to end it
	letGo    map[pointer.Token]bool     // somebody has
	halfway  []staged                   // what somebody uploaded and did not publish
}

// retentions are those of the shelves, in turn: versions and seconds.
var retentions = [][2]int{{1, 0}, {0, 0}, {2, 1}, {0, 2}, {1, 2}}

func newShelf(n, index int) *shelf {
	r := retentions[n%len(retentions)]
	return &shelf{name: fmt.Sprintf("campaign.shelf%d", n), index: index, keepVersions: r[0], keepSeconds: r[1],
		versions: map[pointer.Token]manifest{}, early: map[pointer.Token]manifest{}, pinned: map[pointer.Token]bool{}, letGo: map[pointer.Token]bool{}}
}

// promise says what a version is to hold.
func (s *shelf) promise(t pointer.Token, m manifest) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.versions[t] = m
}

// holds is what a version was meant to hold.
func (s *shelf) holds(t pointer.Token) (manifest, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m, ok := s.versions[t]
	return m, ok
}

// seen compares what a reader saw with what was promised, or remembers it until somebody has
// promised it.
func (s *shelf) seen(t pointer.Token, m manifest) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	want, ok := s.versions[t]
	switch {
	case !ok:
		s.early[t] = m
	case !maps.Equal(want, m):
		return fmt.Errorf("%s: version %s shows the files %v and was published with %v", s.name, t, m, want)
	}
	return nil
}

// unclaimed are the versions that were seen and that nobody ever published, or with other files.
func (s *shelf) unclaimed() (problems []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for t, m := range s.early {
		if want, ok := s.versions[t]; !ok || !maps.Equal(want, m) {
			problems = append(problems, fmt.Sprintf("%s: a reader saw version %s with the files %v, and it was published (%v) with %v", s.name, t, m, ok, want))
		}
	}
	return problems
}

// pin notes that a version is held, once its pin was acknowledged.
func (s *shelf) pin(t pointer.Token) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.letGo[t] {
		s.pinned[t] = true
	}
}

// unpin notes that a version may go, before that is asked for. It is not pinned again: the asking
// may take effect late.
func (s *shelf) unpin(t pointer.Token) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.pinned, t)
	s.letGo[t] = true
}

// mayPin reports whether nobody holds a version or has let it go.
func (s *shelf) mayPin(t pointer.Token) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.pinned[t] && !s.letGo[t]
}

func (s *shelf) isPinned(t pointer.Token) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.pinned[t]
}

// pins are the versions that are held.
func (s *shelf) pins() []pointer.Token {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]pointer.Token, 0, len(s.pinned))
	for t := range s.pinned {
		out = append(out, t)
	}
	return out
}

// abandon remembers what was uploaded and not published, for whoever repeats it.
func (s *shelf) abandon(tree []staged) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.halfway = tree
}

func (s *shelf) abandoned() ([]staged, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.halfway, len(s.halfway) > 0
}

// library knows the bytes of every digest that a publisher ever declared.
type library struct {
	mu    sync.Mutex
	blobs map[artifacts.Digest]blob
}

// maxFile is the size of the largest file, in bytes: one that fits a single request by far.
const maxFile = 12 << 10

// write makes a new content.
func (l *library) write(r *rand.Rand) (artifacts.Digest, blob) {
	b := blob{seed: r.Uint64(), size: r.IntN(maxFile)}
	d := artifacts.DigestOf(b.bytes())
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.blobs == nil {
		l.blobs = map[artifacts.Digest]blob{}
	}
	l.blobs[d] = b
	return d, b
}

func (l *library) blob(d artifacts.Digest) (blob, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	b, ok := l.blobs[d]
	return b, ok
}

// compare says what is wrong with bytes that were read under a digest.
func (l *library) compare(d artifacts.Digest, body []byte) error {
	b, ok := l.blob(d)
	switch {
	case !ok:
		return fmt.Errorf("nobody has ever declared a file of the digest %s", d)
	case !bytes.Equal(b.bytes(), body):
		return fmt.Errorf("%d bytes of the digest %s were read for %d of %s", len(body), artifacts.DigestOf(body), b.size, d)
	}
	return nil
}

// definite reports whether an answer to a read says that there is nothing to read, and does not
// only fail to say anything.
func definite(status int) bool {
	return status != 0 && status != http.StatusServiceUnavailable && status != http.StatusGatewayTimeout
}
