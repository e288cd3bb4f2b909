package main

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/fencedb/fencedb/internal/protocol"
	"github.com/fencedb/fencedb/lease"
)

// allPermits is the argument of --permit for all, permitID the form of the others: how a lease id
// begins.
const allPermits = "all"

var permitID = regexp.MustCompile(`^[0-9a-f]{8}[0-9a-f-]{0,28}$`)

func namesPermits(which string) error {
	if which != allPermits && !permitID.MatchString(which) {
		return errors.New("takes a lease id, or its first 8 digits as fencedb leases prints them, or all")
	}
	return nil
}

// chosen are the permits that --permit names: one, or all.
func (f *permits) chosen(which string) ([]holder, error) {
	found := slices.DeleteFunc(slices.Clone(f.Permits), func(h holder) bool {
		return which != allPermits && !strings.HasPrefix(h.LeaseID.String(), which)
	})
	switch {
	case len(f.Permits) == 0:
		return nil, errors.New("nobody holds a permit")
	case len(found) == 0:
		return nil, fmt.Errorf("nobody holds a permit whose lease id begins with %s; see fencedb inspect", which)
	case len(found) > 1 && which != allPermits:
		return nil, fmt.Errorf("the lease ids of %d permits begin with %s; see fencedb inspect", len(found), which)
	}
	return found, nil
}

// revokedPermits is the result of revoke --permit.
type revokedPermits struct {
	Resource string          `json:"resource"`
	Revoked  []revokedPermit `json:"revoked"`
}

type revokedPermit struct {
	former
	AuditID int64 `json:"audit_id"`
}

func (r *revokedPermits) print(p page) {
	for _, h := range r.Revoked {
		p.say("Revoked: permit %s with token %d%s held %s. Recorded as %d in fencedb.audit.",
			h.LeaseID, h.Token, h.of(), visible(r.Resource), h.AuditID)
	}
	fmt.Fprintln(p.out, "\nWhat a former holder can still do:")
	p.point("Anything, until it learns of this at its next renewal, or when its permit would have ended. A permit does not fence: until then it works beside as many as the limit allows.")
}

// confirmAndRevokePermits ends the permits that which names.
func (s *servers) confirmAndRevokePermits(ctx context.Context, e event, which string) (report, error) {
	found, err := s.prepare(ctx, *e.resource, true, recorded)
	if err != nil {
		return nil, err
	}
	elsewhere := ""
	others := slices.DeleteFunc(found.Elsewhere, func(p location) bool { return p.Kind != protocol.SemaphoreKind })
	if len(others) > 0 {
		elsewhere = "; Redis knows it " + described(others) + " too: see that both flags are right"
	} else if found.unsearched != nil {
		elsewhere = "; whether it is in another namespace too was not found out: " + inWords(found.unsearched)
	}
	held := value(found.Semaphore)
	chosen, err := held.chosen(which)
	if err != nil {
		return nil, fmt.Errorf("%w: %s %s: %w%s", errUnchanged, visible(found.Resource), inNamespace(found.namespace), err, elsewhere)
	}
	if elsewhere != "" {
		fmt.Fprintf(s.errOut, "fencedb: this is about %s %s%s\n", visible(found.Resource), inNamespace(found.namespace), elsewhere)
	}
	question := fmt.Sprintf("Revoke all %d permits?", len(chosen))
	if which != allPermits {
		question = fmt.Sprintf("Revoke the permit with token %d?", chosen[0].Token)
	}
	if err := s.confirm(ctx, question, found); err != nil {
		return nil, err
	}
	return s.revokePermits(ctx, e, found.Resource, chosen)
}

// revokePermits ends the permits that were shown, and records each.
func (s *servers) revokePermits(ctx context.Context, e event, resource string, chosen []holder) (report, error) {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	done := &revokedPermits{Resource: resource, Revoked: []revokedPermit{}}
	for _, h := range chosen {
		ended, err := s.semaphore.Revoke(ctx, resource, h.LeaseID)
		unanswered := errors.Is(err, lease.ErrUnreachable) || err != nil && ctx.Err() != nil
		if ended || unanswered {
			one := revokedPermit{former: former{h.LeaseID, h.Token, h.Label}}
			var unrecorded error
			one.AuditID, unrecorded = s.recordPermit(ctx, e, one.former, unanswered)
			done.Revoked, err = append(done.Revoked, one), errors.Join(err, unrecorded)
			s.changed = fmt.Sprintf("%d of %d permits were revoked, or the last of these may have been; look again", len(done.Revoked), len(chosen))
		}
		if err != nil {
			return nil, err
		}
	}
	if len(done.Revoked) == 0 {
		return nil, fmt.Errorf("%w: no permit that was shown is held any more", errUnchanged)
	}
	return done, nil
}

// recordPermit has its own time, also after Ctrl-C, as the permit has ended, or may have.
func (s *servers) recordPermit(ctx context.Context, e event, ended former, unanswered bool) (int64, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), min(s.timeout, askedAgain))
	defer cancel()
	details := (&revocation{Former: &ended}).details(false)
	details["permit"] = "revoked"
	if unanswered {
		details["permit"] = "unanswered"
	}
	id, err := e.record(ctx, s.pool, details)
	if err != nil {
		err = fmt.Errorf("the revocation of permit %s is not recorded in fencedb.audit: %w", ended.LeaseID, err)
	}
	return id, err
}
