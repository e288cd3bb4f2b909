package app

// Optional is nil unless there is a value.
func Optional[T any](value T, there bool) *T {
	if !there {
		return nil
	}
	return &value
}

// Value is what is there, or zero.
func Value[T any](there *T) (v T) {
	if there != nil {
		v = *there
	}
	return v
}
