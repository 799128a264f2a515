// Submits a job, watches it to its end, and shows how an error is told:
//
//	buf generate && go mod init example.org/adlro-client && go mod tidy && go run . 127.0.0.1:7701
//
// With TLS and a token: ADLRO_TLS_CA_FILE and ADLRO_TOKEN_FILE name the files, as for the command.
package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"log"
	"os"
	"strings"
	"time"

	adlro "example.org/adlro-client/gen/adlro/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

func connect(address string) (*grpc.ClientConn, error) {
	authorities := os.Getenv("ADLRO_TLS_CA_FILE")
	if authorities == "" {
		// Also in old releases. From 1.63 on better: grpc.NewClient, with insecure.NewCredentials().
		return grpc.Dial(address, grpc.WithInsecure())
	}
	tls, err := credentials.NewClientTLSFromFile(authorities, "")
	if err != nil {
		return nil, err
	}
	return grpc.Dial(address, grpc.WithTransportCredentials(tls))
}

func withToken(ctx context.Context) context.Context {
	file := os.Getenv("ADLRO_TOKEN_FILE")
	if file == "" {
		return ctx
	}
	token, err := os.ReadFile(file)
	if err != nil {
		log.Fatal(err)
	}
	return metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+strings.TrimSpace(string(token)))
}

func submit(ctx context.Context, jobs adlro.JobServiceClient, job *adlro.JobSpec, requestID string) (*adlro.Job, error) {
	// Every call that is no stream needs a deadline: the services refuse calls without one.
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	response, err := jobs.SubmitJob(ctx, &adlro.SubmitJobRequest{Job: job, RequestId: requestID})
	return response.GetJob(), err
}

func main() {
	connection, err := connect(os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	defer connection.Close()
	jobs := adlro.NewJobServiceClient(connection)
	ctx, cancel := context.WithCancel(withToken(context.Background()))
	defer cancel()

	job := &adlro.JobSpec{
		Name:          "from Go",
		User:          os.Getenv("USER"),
		JobType:       adlro.JobType_JOB_TYPE_MACHINE_LEARNING,
		Application:   "resnet50",
		CpuCores:      2,
		SimulatedWork: &adlro.SimulatedWork{WorkS: 60},
	}
	// A request id makes a repeated call safe: it gives the same job.
	id := make([]byte, 16)
	if _, err := rand.Read(id); err != nil {
		log.Fatal(err)
	}
	submitted, err := submit(ctx, jobs, job, hex.EncodeToString(id))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(submitted.GetJobId())

	// The job as it is now, then each of its changes. After a broken connection: again, with the last revision seen.
	watched, err := jobs.WatchJobs(ctx, &adlro.WatchJobsRequest{
		Filter: &adlro.JobFilter{JobIds: []string{submitted.GetJobId()}},
	})
	if err != nil {
		log.Fatal(err)
	}
	last := adlro.JobState_JOB_STATE_UNSPECIFIED
	for last < adlro.JobState_JOB_STATE_SUCCEEDED { // from there on the states are final
		change, err := watched.Recv()
		if err != nil {
			log.Fatal(err)
		}
		if changed := change.GetJob(); changed != nil && changed.GetState() != last {
			last = changed.GetState()
			fmt.Println(last)
		}
	}

	urgent := 1.5
	job.Priority = &urgent
	_, err = submit(ctx, jobs, job, "")
	fmt.Println(status.Code(err), status.Convert(err).Message()) // the field, and the way out
}
