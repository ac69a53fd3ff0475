package artifacts

import (
	"cmp"
	"fmt"
)

// Sizes of S3, in bytes, and how artifactd uses them.
const (
	// MaxSinglePut is the largest object, or part, that S3 takes in one PUT.
	MaxSinglePut = 5 << 30
	// MaxObject is the largest object.
	MaxObject = 5 << 40
	// MaxParts is the largest number of parts, and the largest part number.
	MaxParts = 10_000
	// SinglePutSize is the largest object that artifactd stores in one PUT. A larger one is sent
	// in parts, which can be resumed and go in parallel.
	SinglePutSize = 64 << 20
	// MinPartSize is the size of a part, unless the object is so large that it would have too
	// many. S3's own minimum is 5 MiB.
	MinPartSize = 16 << 20
)

const (
	// targetParts leaves room below MaxParts for the rounding of the part size.
	targetParts = 9_000
	mebibyte    = 1 << 20
)

// PartPlan is how an object is cut: Count parts of PartSize bytes, of which only the last may be
// shorter. The plan depends on nothing but the size, so whoever resumes an upload cuts it alike.
type PartPlan struct {
	Size     int64 // of the object, bytes
	PartSize int64 // bytes
	Count    int
}

// Partition is how objects are cut. The zero value is artifactd's own way, [PlanParts]; smaller
// numbers let a test have many parts of few bytes.
type Partition struct {
	SinglePut int64 // largest object that is not cut, bytes; 0 means SinglePutSize
	PartSize  int64 // smallest part but the last, bytes; 0 means MinPartSize
}

// PlanParts plans the upload of size bytes, 0 to MaxObject. Up to SinglePutSize it has one part
// at most: such an object is stored in one PUT.
func PlanParts(size int64) (PartPlan, error) { return Partition{}.Plan(size) }

// Plan is PlanParts with this partition's sizes.
func (c Partition) Plan(size int64) (PartPlan, error) {
	switch {
	case size < 0:
		return PartPlan{}, fmt.Errorf("an object of %d bytes cannot be: the size is missing", size)
	case size > MaxObject:
		return PartPlan{}, fmt.Errorf("an object of %d bytes cannot be stored: %d (5 TiB) are the most", size, int64(MaxObject))
	case size <= cmp.Or(c.SinglePut, SinglePutSize):
		return PartPlan{Size: size, PartSize: size, Count: int(min(size, 1))}, nil
	}
	partSize := max(cmp.Or(c.PartSize, MinPartSize), divideUp(divideUp(size, targetParts), mebibyte)*mebibyte)
	return PartPlan{Size: size, PartSize: partSize, Count: int(divideUp(size, partSize))}, nil
}

// Multipart reports whether the object is sent in parts rather than in one PUT.
func (p PartPlan) Multipart() bool { return p.Count > 1 }

// Range is where part n lies in the object; n is 1 to Count.
func (p PartPlan) Range(n int) (ByteRange, error) {
	if n < 1 || n > p.Count {
		return ByteRange{}, fmt.Errorf("part %d: an object of %d bytes has parts 1 to %d", n, p.Size, p.Count)
	}
	offset := int64(n-1) * p.PartSize
	return ByteRange{Offset: offset, Length: min(p.PartSize, p.Size-offset)}, nil
}

func divideUp(a, b int64) int64 { return (a + b - 1) / b }
