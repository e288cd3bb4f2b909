// Package grpc carries grants over gRPC, in the metadata fencing-grant, as package grant does over
// HTTP. It is a module of its own.
//
//	conn, err := grpc.NewClient(target,
//		grpc.WithChainUnaryInterceptor(grantgrpc.UnaryClient()),
//		grpc.WithChainStreamInterceptor(grantgrpc.StreamClient()))
//	...
//	answer, err := seats.Book(grant.NewContext(ctx, lease), request)
//
// The server says whom it believes, and its handlers find the grant with grant.FromContext:
//
//	trust := grant.Verified(leases)
//	server := grpc.NewServer(
//		grpc.ChainUnaryInterceptor(grantgrpc.UnaryServer(trust)),
//		grpc.ChainStreamInterceptor(grantgrpc.StreamServer(trust)))
//
// A call without a grant passes as it is. The context of a handler ends with the grant or when the
// caller goes. The metadata is taken out of it, so that no later interceptor can log it: put
// interceptors that log metadata after this one.
//
// A grant that is not believed does not reach the handler: InvalidArgument for a line that is
// malformed, Aborted if the lease is over or not current, Unavailable if Redis could not be asked,
// Internal for the zero Trust. The message depends on the code only, because anybody may send a
// line, and an error can name the address of Redis. For the error, call Trust.Accept instead.
//
// A handler answers in the same way, by guard.Answer of its error: Aborted for Busy, Unavailable
// for Unavailable, Unknown for Unknown, Internal for Refused. To the caller, Aborted says that
// nothing was written. Where the channel has retried the call, the interceptor of the server
// answers Unknown instead, because an earlier attempt may have written; a proxy that retries is not
// noticed. Look at your own context first: if it has ended, its cause is the answer. Unavailable,
// DeadlineExceeded and Canceled come from broken connections and ended contexts too, so after
// these, as after Unknown, the call may have written: give it a key for fencedb.Once, and
// make it again. guard.Answer does not read codes of gRPC: do not ask it about their errors.
package grpc

import (
	"context"
	"errors"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/grant"
	"github.com/fencedb/fencedb/lease"
)

// key is the name of the metadata, grant.Header in lower case.
var key = strings.ToLower(grant.Header)

// UnaryClient sends the grant of a call's context, see grant.NewContext, with the call. Retries
// that gRPC makes by itself carry the same line, which says when it was sent. A call whose grant
// cannot be encoded fails with the error of grant.Encode, and is not sent.
func UnaryClient() grpc.UnaryClientInterceptor {
	return func(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn,
		invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		ctx, err := sending(ctx)
		if err != nil {
			return err
		}
		return invoke(ctx, method, req, reply, conn, opts...)
	}
}

// StreamClient is UnaryClient for streams. The line is made when the stream begins, and a stream
// that outlasts it ends with it in the server.
func StreamClient() grpc.StreamClientInterceptor {
	return func(ctx context.Context, desc *grpc.StreamDesc, conn *grpc.ClientConn, method string,
		open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
		ctx, err := sending(ctx)
		if err != nil {
			return nil, err
		}
		return open(ctx, desc, conn, method, opts...)
	}
}

func sending(ctx context.Context) (context.Context, error) {
	g, ok := grant.FromContext(ctx)
	if !ok {
		return ctx, nil
	}
	line, err := grant.Encode(g)
	if err != nil {
		return nil, err
	}
	md, _ := metadata.FromOutgoingContext(ctx) // a copy
	if md == nil {
		md = metadata.MD{}
	}
	md.Set(key, line)
	return metadata.NewOutgoingContext(ctx, md), nil
}

// UnaryServer gives handlers the grant that a call came with, if trust believes it.
func UnaryServer(trust grant.Trust) grpc.UnaryServerInterceptor {
	return func(caller context.Context, req any, _ *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
		ctx, cancel, err := received(caller, trust)
		if err != nil {
			return nil, err
		}
		defer cancel()
		answer, err := handle(ctx, req)
		return answer, ofAllAttempts(caller, err)
	}
}

// StreamServer is UnaryServer for streams. The end of the grant ends the context of the stream, and
// not a Recv that waits: look at the context, or bound the stream by the caller's.
func StreamServer(trust grant.Trust) grpc.StreamServerInterceptor {
	return func(server any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
		ctx, cancel, err := received(stream.Context(), trust)
		if err != nil {
			return err
		}
		defer cancel()
		return ofAllAttempts(stream.Context(), handle(server, under{stream, ctx}))
	}
}

// under is a stream with another context.
type under struct {
	grpc.ServerStream
	ctx context.Context
}

// Context is for the handler.
func (s under) Context() context.Context { return s.ctx }

func received(caller context.Context, trust grant.Trust) (context.Context, context.CancelFunc, error) {
	md, _ := metadata.FromIncomingContext(caller) // a copy
	lines := md.Get(key)
	if len(lines) == 0 {
		return caller, func() {}, nil
	}
	md.Delete(key)
	ctx, cancel, err := trust.Accept(metadata.NewIncomingContext(caller, md), strings.Join(lines, ","))
	if err != nil {
		code := code(trust, err)
		return nil, nil, ofAllAttempts(caller, status.Error(code, refusals[code]))
	}
	return ctx, cancel, nil
}

// ofAllAttempts is the answer to a call that came with a grant. Aborted says that nothing was
// written, but the server knows that of the last attempt only.
func ofAllAttempts(caller context.Context, err error) error {
	const attempts = "grpc-previous-rpc-attempts" // by the channel; none if the call came for the first time
	repeated := len(metadata.ValueFromIncomingContext(caller, attempts)) > 0
	if status.Code(err) != codes.Aborted || !repeated || len(metadata.ValueFromIncomingContext(caller, key)) == 0 {
		return err
	}
	return status.Error(codes.Unknown, "grant: gRPC has made the call again, and that was answered Aborted: "+status.Convert(err).Message())
}

func code(trust grant.Trust, err error) codes.Code {
	switch {
	case trust == grant.Trust{}:
		return codes.Internal
	case errors.Is(err, grant.ErrMalformed):
		return codes.InvalidArgument
	case errors.Is(err, fencedb.ErrLeaseOver), lease.IsLost(err):
		return codes.Aborted
	}
	return codes.Unavailable
}

var refusals = map[codes.Code]string{
	codes.InvalidArgument: "grant: malformed line",
	codes.Aborted:         "grant: the lease is over or not current",
	codes.Unavailable:     "grant: the receiver could not ask whether the lease is current",
	codes.Internal:        "grant: the receiver has not chosen whom it trusts",
}
