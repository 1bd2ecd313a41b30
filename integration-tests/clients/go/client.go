// Calls a Comity broker through grpc-go: submit, list by pages, watch and resume, and a refused call.
//
//	client BROKER IDENTITY [RUN]
//
// BROKER is HOST:PORT. IDENTITY is a directory with cert.pem, key.pem and ca.pem. RUN makes idempotency keys unique;
// without it, the program only lists. Prints one JSON object.
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	comity "comity.dev/clients/go/comity/v1"
)

const (
	tenant  = "poly-ml"
	timeout = 30 * time.Second
)

// docs: connect
func connect(broker, identity string) (*grpc.ClientConn, error) {
	certificate, err := tls.LoadX509KeyPair(filepath.Join(identity, "cert.pem"), filepath.Join(identity, "key.pem"))
	if err != nil {
		return nil, err
	}
	ca, err := os.ReadFile(filepath.Join(identity, "ca.pem"))
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(ca) {
		return nil, fmt.Errorf("no certificate in %s/ca.pem", identity)
	}
	config := &tls.Config{Certificates: []tls.Certificate{certificate}, RootCAs: roots}
	return grpc.NewClient(broker, grpc.WithTransportCredentials(credentials.NewTLS(config)))
}

// docs: end

func demand() *comity.RequestSpec {
	return &comity.RequestSpec{
		Tenant: tenant,
		Origin: "polytech-campus",
		Gpus: &comity.GpuDemand{
			Class:          "frontier",
			Share:          &comity.Share{Kind: &comity.Share_Whole_{Whole: &comity.Share_Whole{}}},
			Count:          1,
			CpuMilliPerGpu: 1000, MemoryMibPerGpu: 1024,
		},
		DurationMs: 3_600_000,
		Delivery:   comity.Delivery_DELIVERY_NAMESPACE,
	}
}

// The same key returns the same request, so a call may be repeated.
func submit(ctx context.Context, requests comity.RequestServiceClient, key string) (string, error) {
	reply, err := requests.SubmitRequest(ctx, &comity.SubmitRequestRequest{
		Spec: demand(), IdempotencyKey: key, QueueAnyway: true,
	})
	return reply.GetRequest().GetId(), err
}

// The ids on each page, and the revision of the last page.
func listPages(ctx context.Context, requests comity.RequestServiceClient, size uint32) ([][]string, uint64, error) {
	var pages [][]string
	page := &comity.PageRequest{Size: size}
	for {
		reply, err := requests.ListRequests(ctx, &comity.ListRequestsRequest{Tenant: tenant, Page: page})
		if err != nil {
			return nil, 0, err
		}
		var ids []string
		for _, request := range reply.GetRequests() {
			ids = append(ids, request.GetId())
		}
		pages = append(pages, ids)
		page.Token = reply.GetPage().GetNextToken()
		if page.Token == "" {
			return pages, reply.GetPage().GetRevision(), nil
		}
	}
}

// docs: watch
// The next count changes of requests after revision, and the revision to resume from.
func watch(ctx context.Context, watcher comity.WatchServiceClient, revision uint64, count int) ([]string, uint64, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := watcher.Watch(ctx, &comity.WatchRequest{FromRevision: revision})
	if err != nil {
		return nil, 0, err
	}
	var seen []string
	for len(seen) < count {
		event, err := stream.Recv()
		if err != nil {
			return nil, 0, err
		}
		revision = event.GetRevision()
		if request := event.GetRequest(); request != nil {
			seen = append(seen, fmt.Sprintf("%s %s", request.GetId(), request.GetState()))
		}
	}
	return seen, revision, nil
}

// docs: end

type refusal struct {
	Code         int      `json:"code"`
	Reason       string   `json:"reason"`
	Fields       []string `json:"fields"`
	RetryAfterMs *int64   `json:"retryAfterMs"`
}

// docs: errors
func describe(err error) *refusal {
	refused := &refusal{Code: int(status.Code(err)), Fields: []string{}}
	for _, detail := range status.Convert(err).Details() {
		switch detail := detail.(type) {
		case *errdetails.ErrorInfo:
			refused.Reason = detail.GetReason()
		case *errdetails.BadRequest:
			for _, violation := range detail.GetFieldViolations() {
				refused.Fields = append(refused.Fields, violation.GetField())
			}
		case *errdetails.RetryInfo:
			after := detail.GetRetryDelay().AsDuration().Milliseconds()
			refused.RetryAfterMs = &after
		}
	}
	return refused
}

// docs: end

type report struct {
	Submitted []string   `json:"submitted,omitempty"`
	Repeated  string     `json:"repeated,omitempty"`
	Pages     [][]string `json:"pages,omitempty"`
	Watched   []string   `json:"watched,omitempty"`
	Resumed   []string   `json:"resumed,omitempty"`
	Refused   *refusal   `json:"refused"`
}

func (r *report) onlyList(ctx context.Context, broker, identity string) error {
	channel, err := connect(broker, identity)
	if err != nil {
		return err
	}
	defer channel.Close()
	if _, _, err := listPages(ctx, comity.NewRequestServiceClient(channel), 500); err != nil {
		r.Refused = describe(err)
	}
	return nil
}

func (r *report) wholeTour(ctx context.Context, broker, identity, run string) error {
	revision, err := r.first(ctx, broker, identity, run)
	if err != nil {
		return err
	}
	return r.second(ctx, broker, identity, run, revision)
}

// first submits and lists, and watches until it disconnects; it returns the revision to resume from.
func (r *report) first(ctx context.Context, broker, identity, run string) (uint64, error) {
	channel, err := connect(broker, identity)
	if err != nil {
		return 0, err
	}
	defer channel.Close()
	requests := comity.NewRequestServiceClient(channel)
	_, revision, err := listPages(ctx, requests, 500)
	if err != nil {
		return 0, err
	}
	for number := 1; number <= 3; number++ {
		id, err := submit(ctx, requests, fmt.Sprintf("%s-%d", run, number))
		if err != nil {
			return 0, err
		}
		r.Submitted = append(r.Submitted, id)
	}
	if r.Repeated, err = submit(ctx, requests, run+"-1"); err != nil {
		return 0, err
	}
	if r.Pages, _, err = listPages(ctx, requests, 1); err != nil {
		return 0, err
	}
	r.Watched, revision, err = watch(ctx, comity.NewWatchServiceClient(channel), revision, 2)
	return revision, err
}

// second cancels on another connection, resumes the watch, and makes a call that is refused.
func (r *report) second(ctx context.Context, broker, identity, run string, revision uint64) error {
	channel, err := connect(broker, identity)
	if err != nil {
		return err
	}
	defer channel.Close()
	requests := comity.NewRequestServiceClient(channel)
	for number, id := range r.Submitted {
		key := fmt.Sprintf("%s-cancel-%d", run, number)
		if _, err := requests.CancelRequest(ctx, &comity.CancelRequestRequest{Request: id, IdempotencyKey: key}); err != nil {
			return err
		}
	}
	if r.Resumed, _, err = watch(ctx, comity.NewWatchServiceClient(channel), revision, 4); err != nil {
		return err
	}
	if _, err := requests.SubmitRequest(ctx, &comity.SubmitRequestRequest{}); err != nil {
		r.Refused = describe(err)
	}
	return nil
}

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	var done report
	var err error
	switch args := os.Args[1:]; len(args) {
	case 2:
		err = done.onlyList(ctx, args[0], args[1])
	case 3:
		err = done.wholeTour(ctx, args[0], args[1], args[2])
	default:
		err = errors.New("the arguments are BROKER IDENTITY [RUN]")
	}
	if err != nil {
		log.Fatal(err)
	}
	if err := json.NewEncoder(os.Stdout).Encode(done); err != nil {
		log.Fatal(err)
	}
}
