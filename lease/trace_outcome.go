package lease

import "errors"

// outcomes are the words for the ends of an [Op].
type outcomes struct {
	success string
	failure string // any other error
	errors  []errorWord
}

// errorWord is the word for errors that are err. The first that matches counts, for an error can be several.
type errorWord struct {
	err  error
	word string
}

var (
	acquireOutcomes = outcomes{"granted", "error", []errorWord{
		{ErrHeld, "held"},
		{ErrUnreachable, "unreachable"},
	}}
	otherOutcomes = outcomes{success: "done", failure: "failed"}

	outcomesOf = map[Op]outcomes{
		OpAcquire: acquireOutcomes,
		OpWait:    acquireOutcomes,
		OpHold: {"released", "lost", []errorWord{
			{ErrReleased, "released"},
			{ErrRevoked, "revoked"},
			{ErrStale, "stale"},
			{ErrUnreachable, "unreachable"},
			{ErrExpired, "expired"},
		}},
		OpExtend: {"extended", "error", []errorWord{
			{ErrRevoked, "revoked"},
			{ErrUnreachable, "unreachable"},
			{ErrExpired, "lost"},
			{ErrLost, "lost"},
		}},
		OpRelease: {"released", "error", []errorWord{
			{ErrRevoked, "revoked"},
			{ErrExpired, "expired"},
			{ErrLost, "lost"},
			{ErrUnreachable, "unreachable"},
		}},
		OpHeal: {success: "healed", failure: "failed"},
	}
)

func (op Op) outcomes() outcomes {
	if all, ok := outcomesOf[op]; ok {
		return all
	}
	return otherOutcomes
}

// Outcome is the word for Err in metrics, logs and events: one of [Op.Outcomes], whatever the error is. For OpHold it is
// "released" if the holder gave the lease back, otherwise the cause of the loss.
func (e TraceEnd) Outcome() string {
	all := e.Op.outcomes()
	if e.Err == nil {
		return all.success
	}
	for _, known := range all.errors {
		if errors.Is(e.Err, known.err) {
			return known.word
		}
	}
	return all.failure
}

// Outcomes lists the words that [TraceEnd.Outcome] can return for this Op, each once.
func (op Op) Outcomes() []string {
	all := op.outcomes()
	words := []string{all.success}
	seen := map[string]bool{all.success: true}
	for _, known := range append(all.errors, errorWord{word: all.failure}) {
		if !seen[known.word] {
			seen[known.word] = true
			words = append(words, known.word)
		}
	}
	return words
}
