package grpc_test

import (
	"context"
	"fmt"
	"log"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	health "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/test/bufconn"

	"github.com/fencedb/fencedb/grant"
	grantgrpc "github.com/fencedb/fencedb/grant/grpc"
)

// dial connects to a server that believes its network and prints the grant of each call.
func dial(options ...grpc.DialOption) (client health.HealthClient, stop func()) {
	listener := bufconn.Listen(1 << 16)
	server := grpc.NewServer(
		grpc.ChainUnaryInterceptor(grantgrpc.UnaryServer(grant.Trusted(10*time.Second))),
		grpc.ChainStreamInterceptor(grantgrpc.StreamServer(grant.Trusted(10*time.Second))))
	health.RegisterHealthServer(server, service{work: func(ctx context.Context) error {
		g, ok := grant.FromContext(ctx)
		fmt.Println(g, ok) // fencedb.Tx(ctx, pool, g, ...)
		return nil
	}})
	go func() { _ = server.Serve(listener) }()
	conn, err := grpc.NewClient("passthrough:b", append(options,
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }),
		grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	if err != nil {
		log.Fatal(err)
	}
	return health.NewHealthClient(conn), server.Stop
}

func ExampleUnaryClient() {
	client, stop := dial(grpc.WithChainUnaryInterceptor(grantgrpc.UnaryClient()))
	defer stop()
	lease := until(time.Now().Add(10 * time.Second)) // from package lease

	_, err := client.Check(grant.NewContext(context.Background(), lease), &health.HealthCheckRequest{})

	fmt.Println(err)
	// Output:
	// grant for "table:12" with token 41 true
	// <nil>
}

func ExampleStreamClient() {
	client, stop := dial(grpc.WithChainStreamInterceptor(grantgrpc.StreamClient()))
	defer stop()
	lease := until(time.Now().Add(10 * time.Second)) // from package lease

	stream, err := client.Watch(grant.NewContext(context.Background(), lease), &health.HealthCheckRequest{})
	if err != nil {
		log.Fatal(err)
	}
	_, err = stream.Recv()

	fmt.Println(err)
	// Output:
	// grant for "table:12" with token 41 true
	// <nil>
}

// A call without a grant reaches the handler without one.
func ExampleUnaryServer() {
	client, stop := dial()
	defer stop()

	_, err := client.Check(context.Background(), &health.HealthCheckRequest{})

	fmt.Println(err)
	// Output:
	// <nil> false
	// <nil>
}

func ExampleStreamServer() {
	client, stop := dial()
	defer stop()

	stream, err := client.Watch(context.Background(), &health.HealthCheckRequest{})
	if err != nil {
		log.Fatal(err)
	}
	_, err = stream.Recv()

	fmt.Println(err)
	// Output:
	// <nil> false
	// <nil>
}
