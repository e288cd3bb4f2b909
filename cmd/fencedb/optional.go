package main

// optional is nil unless there is a value.
func optional[T any](value T, there bool) *T {
	if !there {
		return nil
	}
	return &value
}

// value is what is there, or zero.
func value[T any](there *T) (v T) {
	if there != nil {
		v = *there
	}
	return v
}
