package artifacts_test

import (
	"testing"

	"github.com/artifactd/artifactd/artifacts"
)

const (
	mib = int64(1) << 20
	gib = int64(1) << 30
)

func TestPlanParts(t *testing.T) {
	for _, c := range []struct {
		size, partSize int64
		count          int
		multipart      bool
		last           int64
	}{
		{0, 0, 0, false, 0},
		{1, 1, 1, false, 1},
		{64 * mib, 64 * mib, 1, false, 64 * mib},
		{64*mib + 1, 16 * mib, 5, true, 1},
		{80 * mib, 16 * mib, 5, true, 16 * mib},
		{80*mib + 1, 16 * mib, 6, true, 1},
		{5 * gib, 16 * mib, 320, true, 16 * mib},
		// The last size that 9,000 parts of 16 MiB hold, and the first that they do not.
		{9000 * 16 * mib, 16 * mib, 9000, true, 16 * mib},
		{9000*16*mib + 1, 17 * mib, 8471, true, 10*mib + 1},
		{1024 * gib, 117 * mib, 8963, true, 22 * mib},
		{artifacts.MaxObject - 1, 583 * mib, 8993, true, 544*mib - 1},
		{artifacts.MaxObject, 583 * mib, 8993, true, 544 * mib},
	} {
		p, err := artifacts.PlanParts(c.size)
		if err != nil || p.PartSize != c.partSize || p.Count != c.count || p.Multipart() != c.multipart || p.Size != c.size {
			t.Errorf("PlanParts(%d) = %+v, multipart %v, %v", c.size, p, p.Multipart(), err)
			continue
		}
		if c.count == 0 {
			continue
		}
		if last, err := p.Range(p.Count); err != nil || last.Length != c.last || last.Offset+last.Length != c.size {
			t.Errorf("PlanParts(%d).Range(%d) = %+v, %v; want %d bytes", c.size, p.Count, last, err, c.last)
		}
	}
	for _, size := range []int64{-1, artifacts.MaxObject + 1, 1<<63 - 1} {
		if p, err := artifacts.PlanParts(size); err == nil {
			t.Errorf("PlanParts(%d) = %+v", size, p)
		}
	}
}

func TestPartRangesAreTheWhole(t *testing.T) {
	p, err := artifacts.PlanParts(100*mib + 7)
	if err != nil {
		t.Fatal(err)
	}
	var end int64
	for n := 1; n <= p.Count; n++ {
		r, err := p.Range(n)
		if err != nil || r.Offset != end || r.Length < 1 || (n < p.Count && r.Length != p.PartSize) {
			t.Errorf("part %d: %+v, %v", n, r, err)
		}
		end = r.Offset + r.Length
	}
	if end != p.Size {
		t.Errorf("the parts end at %d of %d", end, p.Size)
	}
	for _, n := range []int{-1, 0, p.Count + 1} {
		if r, err := p.Range(n); err == nil {
			t.Errorf("part %d: %+v", n, r)
		}
	}
}

// FuzzPlanParts holds every plan to the limits of S3.
func FuzzPlanParts(f *testing.F) {
	for _, size := range []int64{0, 1, 64 << 20, 64<<20 + 1, 9000 * 16 << 20, 9000*16<<20 + 1, artifacts.MaxObject} {
		f.Add(size)
	}
	f.Fuzz(func(t *testing.T, size int64) {
		p, err := artifacts.PlanParts(size)
		if size < 0 || size > artifacts.MaxObject {
			if err == nil {
				t.Errorf("PlanParts(%d) = %+v", size, p)
			}
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		if !p.Multipart() {
			return
		}
		last, err := p.Range(p.Count)
		switch {
		case err != nil, last.Offset+last.Length != size, last.Length < 1:
			t.Errorf("PlanParts(%d): the last of %d parts is %+v, %v", size, p.Count, last, err)
		case p.Count > artifacts.MaxParts, p.PartSize < artifacts.MinPartSize, p.PartSize > artifacts.MaxSinglePut, p.PartSize%mib != 0:
			t.Errorf("PlanParts(%d) = %+v", size, p)
		}
	})
}
