//go:build nodevs3

package devstack

import "io"

// hasS3Child: this build leaves the S3 server out.
const hasS3Child = false

func runS3Child(io.Reader) error { return ErrNoS3Server }
