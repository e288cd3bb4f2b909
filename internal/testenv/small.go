package testenv

import "testing"

// Small reports whether tests repeat less: with -short, and under the race detector, which looks
// for interleavings and finds none by a number of seeds. It is for sizes only and leaves no subject
// out. make test-all runs the full sizes without the detector.
func Small() bool { return testing.Short() || raced }
