package main

// mostFaults is how many faults of one kind are told one by one.
const mostFaults = 10

// faults gathers what is wrong with many files, so that all of it is told at once.
type faults struct {
	told []error
	more int // beyond those that are told
}

func (f *faults) add(err error) {
	if len(f.told) < mostFaults {
		f.told = append(f.told, err)
	} else {
		f.more++
	}
}

// err is nil without faults, the fault itself when there is one, and else an error whose text comes from
// sum, with all of them.
func (f *faults) err(sum func(n int) string) error {
	switch n := len(f.told) + f.more; n {
	case 0:
		return nil
	case 1:
		return f.told[0]
	default:
		return &severalError{*f, sum(n)}
	}
}

// severalError is told in several lines: one for each fault, then its own.
type severalError struct {
	faults
	text string
}

func (e *severalError) Error() string   { return e.text }
func (e *severalError) Unwrap() []error { return e.told }
