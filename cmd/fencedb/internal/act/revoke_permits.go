package act

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/fencedb/fencedb/cmd/fencedb/internal/app"
	"github.com/fencedb/fencedb/cmd/fencedb/internal/conn"
	"github.com/fencedb/fencedb/cmd/fencedb/internal/look"
	"github.com/fencedb/fencedb/cmd/fencedb/internal/term"
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

// choose are the permits that --permit names: one, or all.
func choose(f *look.Permits, which string) ([]look.Holder, error) {
	found := slices.DeleteFunc(slices.Clone(f.Permits), func(h look.Holder) bool {
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

// RevokedPermits is the result of revoke --permit.
type RevokedPermits struct {
	Resource string          `json:"resource"`
	Revoked  []RevokedPermit `json:"revoked"`
}

// RevokedPermit is a permit that was ended.
type RevokedPermit struct {
	Former
	AuditID int64 `json:"audit_id"`
}

// Print implements [term.Report].
func (r *RevokedPermits) Print(p term.Page) {
	for _, h := range r.Revoked {
		p.Say("Revoked: permit %s with token %d%s held %s. Recorded as %d in fencedb.audit.",
			h.LeaseID, h.Token, h.of(), term.Visible(r.Resource), h.AuditID)
	}
	fmt.Fprintln(p.Out, "\nWhat a former holder can still do:")
	p.Point("Anything, until it learns of this at its next renewal, or when its permit would have ended. A permit does not fence: until then it works beside as many as the limit allows.")
}

// confirmAndRevokePermits ends the permits that which names.
func confirmAndRevokePermits(ctx context.Context, s *conn.Servers, e event, which string) (term.Report, error) {
	found, err := prepare(ctx, s, *e.resource, true, recorded)
	if err != nil {
		return nil, err
	}
	elsewhere := ""
	others := slices.DeleteFunc(found.Elsewhere, func(p look.Location) bool { return p.Kind != protocol.SemaphoreKind })
	if len(others) > 0 {
		elsewhere = "; Redis knows it " + look.Describe(others) + " too: see that both flags are right"
	} else if found.Unsearched != nil {
		elsewhere = "; whether it is in another namespace too was not found out: " + app.InWords(found.Unsearched)
	}
	held := app.Value(found.Semaphore)
	chosen, err := choose(&held, which)
	if err != nil {
		return nil, fmt.Errorf("%w: %s %s: %w%s", app.ErrUnchanged, term.Visible(found.Resource), app.InNamespace(found.Namespace), err, elsewhere)
	}
	if elsewhere != "" {
		fmt.Fprintf(s.ErrOut, "fencedb: this is about %s %s%s\n", term.Visible(found.Resource), app.InNamespace(found.Namespace), elsewhere)
	}
	question := fmt.Sprintf("Revoke all %d permits?", len(chosen))
	if which != allPermits {
		question = fmt.Sprintf("Revoke the permit with token %d?", chosen[0].Token)
	}
	if err := s.Confirm(ctx, question, found); err != nil {
		return nil, err
	}
	return revokePermits(ctx, s, e, found.Resource, chosen)
}

// revokePermits ends the permits that were shown, and records each.
func revokePermits(ctx context.Context, s *conn.Servers, e event, resource string,
	chosen []look.Holder) (term.Report, error) {
	ctx, cancel := s.Bounded(ctx)
	defer cancel()
	done := &RevokedPermits{Resource: resource, Revoked: []RevokedPermit{}}
	for _, h := range chosen {
		ended, err := s.Semaphore.Revoke(ctx, resource, h.LeaseID)
		unanswered := errors.Is(err, lease.ErrUnreachable) || err != nil && ctx.Err() != nil
		if ended || unanswered {
			one := RevokedPermit{Former: Former{h.LeaseID, h.Token, h.Label}}
			var unrecorded error
			one.AuditID, unrecorded = recordPermit(ctx, s, e, one.Former, unanswered)
			done.Revoked, err = append(done.Revoked, one), errors.Join(err, unrecorded)
			s.Changed = fmt.Sprintf("%d of %d permits were revoked, or the last of these may have been; look again", len(done.Revoked), len(chosen))
		}
		if err != nil {
			return nil, err
		}
	}
	if len(done.Revoked) == 0 {
		return nil, fmt.Errorf("%w: no permit that was shown is held any more", app.ErrUnchanged)
	}
	return done, nil
}

// recordPermit has its own time, also after Ctrl-C, as the permit has ended, or may have.
func recordPermit(ctx context.Context, s *conn.Servers, e event, ended Former, unanswered bool) (int64, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), min(s.Timeout, askedAgain))
	defer cancel()
	details := (&Revocation{Former: &ended}).details(false)
	details["permit"] = "revoked"
	if unanswered {
		details["permit"] = "unanswered"
	}
	id, err := e.record(ctx, s.Pool, details)
	if err != nil {
		err = fmt.Errorf("the revocation of permit %s is not recorded in fencedb.audit: %w", ended.LeaseID, err)
	}
	return id, err
}
