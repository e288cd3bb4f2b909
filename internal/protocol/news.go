package protocol

import (
	"strconv"
	"strings"
	"time"
)

// News is a message to a waiter, as common.lua publishes it.
type News struct {
	Call    string        // for which call; "" if it says nothing
	Granted *Granted      // nil: ask
	Look    time.Duration // ask after that time; 0: now
}

// Granted is the news that the waiter holds.
type Granted struct {
	Request int64 // the request that this answers
	Token   int64
	Lasts   time.Duration // from the moment at which Redis answered that request
}

// ReadNews reads "free <call>", "look <call> <ms>" or "granted <call> <request> <token> <ms>". Any
// other message that begins with a word and a call is a reason to ask.
func ReadNews(message string) News {
	words := strings.Fields(message)
	if len(words) < 2 {
		return News{}
	}
	n := News{Call: words[1]}
	var numbers []int64
	for _, word := range words[2:] {
		number, err := strconv.ParseInt(word, 10, 64)
		if err != nil || number < 1 {
			return n
		}
		numbers = append(numbers, number)
	}
	switch {
	case words[0] == "granted" && len(numbers) == 3:
		n.Granted = &Granted{numbers[0], numbers[1], time.Duration(numbers[2]) * time.Millisecond}
	case words[0] == "look" && len(numbers) == 1:
		n.Look = time.Duration(numbers[0]) * time.Millisecond
	}
	return n
}
