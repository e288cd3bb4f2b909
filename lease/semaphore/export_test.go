package semaphore

import "github.com/fencedb/fencedb/lease"

// Issuer is what gives out the places.
func (s *Semaphore) Issuer() *lease.Issuer { return s.issuer }
