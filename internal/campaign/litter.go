package main

import (
	"bytes"
	"context"
	"encoding/hex"
	"sync"
	"time"

	"github.com/artifactd/artifactd/artifacts"
)

// strays are objects that the campaign put into the bucket itself.
type strays struct {
	mu sync.Mutex
	// unknown ones are like an artifact's that no row knows, and are to go; the others are to stay:
	// those of an epoch that was never issued, and those that are no artifacts.
	unknown, stay map[string]bool
}

func (s *strays) add(key string, stays bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.unknown == nil {
		s.unknown, s.stay = map[string]bool{}, map[string]bool{}
	}
	if stays {
		s.stay[key] = true
	} else {
		s.unknown[key] = true
	}
}

// is reports whether a key is one of these.
func (s *strays) is(key string, stays bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if stays {
		return s.stay[key]
	}
	return s.unknown[key]
}

func (s *strays) count() (unknown, stay int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.unknown), len(s.stay)
}

// Keys of a stray that is the like of an artifact say nothing of where it comes from; its metadata does.
const (
	futureToken  = "999999.1"
	pointerLabel = "artifactd-pointer"
	tokenLabel   = "artifactd-token"
)

// litter puts objects into the bucket that no row knows, until the campaign ends.
func (a *actor) litter() {
	for a.c.running() {
		a.step(a.stray)
		time.Sleep(a.between(200*time.Millisecond, 800*time.Millisecond))
	}
}

func (a *actor) stray() {
	body := blob{seed: a.rng.Uint64(), size: 1 + a.rng.IntN(100)}.bytes()
	u := artifacts.Upload{Digest: artifacts.DigestOf(body), Size: int64(len(body))}
	layout := artifacts.Layout{Prefix: keyPrefix}
	u.Key = layout.ArtifactKey(u.Digest, a.uuid())
	stays := a.chance(20)
	switch {
	case stays && a.chance(50):
		u.Metadata = map[string]string{pointerLabel: a.c.names[0], tokenLabel: futureToken}
	case stays:
		u.Key = keyPrefix + "artifacts/" + hex.EncodeToString(body[:1]) + "/" + a.uuid().String()
	case a.chance(50):
		u.Metadata = map[string]string{pointerLabel: a.c.names[0], tokenLabel: "1.1"}
	}
	// Before it is there: a pass may be quick.
	a.c.strays.add(u.Key, stays)
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	if err := a.c.stack.store.Put(ctx, u, bytes.NewReader(body)); err != nil {
		a.c.violate("the store itself does not take an object: %v", err)
	}
}
