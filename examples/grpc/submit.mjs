// Submits a job, watches it to its end, and shows how an error is told. For Node.js, without generated code:
//
//     npm install @grpc/grpc-js @grpc/proto-loader
//     node examples/grpc/submit.mjs 127.0.0.1:7701
//
// With TLS and a token: ADLRO_TLS_CA_FILE and ADLRO_TOKEN_FILE name the files, as for the command.
import { randomUUID } from "node:crypto";
import { readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import grpc from "@grpc/grpc-js";
import { loadSync } from "@grpc/proto-loader";

const root = fileURLToPath(new URL("../..", import.meta.url));
// Names in camel case (`jobId`), enums by name, 64-bit numbers as text: as in the JSON of the contracts.
const definition = loadSync("adlro/v1/job_service.proto", {
  includeDirs: [`${root}/protos`, `${root}/third_party/protovalidate`],
  enums: String,
  longs: String,
  defaults: true,
});
const { JobService } = grpc.loadPackageDefinition(definition).adlro.v1;

const { ADLRO_TLS_CA_FILE: authorities, ADLRO_TOKEN_FILE: tokenFile } = process.env;
const credentials = authorities ? grpc.credentials.createSsl(readFileSync(authorities)) : grpc.credentials.createInsecure();
const jobs = new JobService(process.argv[2] ?? "127.0.0.1:7701", credentials);

const metadata = new grpc.Metadata();
if (tokenFile) metadata.set("authorization", `Bearer ${readFileSync(tokenFile, "utf8").trim()}`);

// Every call that is no stream needs a deadline: the services refuse calls without one.
function call(method, request) {
  return new Promise((resolve, reject) => {
    const answer = (error, response) => (error ? reject(error) : resolve(response));
    jobs[method](request, metadata, { deadline: Date.now() + 10_000 }, answer);
  });
}

const job = {
  name: "from JavaScript",
  user: process.env.USER ?? "node",
  jobType: "JOB_TYPE_MACHINE_LEARNING",
  application: "resnet50",
  cpuCores: 2,
  simulatedWork: { workS: 60 },
};
// A request id makes a repeated call safe: it gives the same job.
const { job: submitted } = await call("SubmitJob", { job, requestId: randomUUID() });
console.log(submitted.jobId);

// The job as it is now, then each of its changes. After a broken connection: again, with the last revision seen.
const watched = jobs.WatchJobs({ filter: { jobIds: [submitted.jobId] } }, metadata);
let last = "";
for await (const { job: changed } of watched) {
  if (changed && changed.state !== last) console.log((last = changed.state));
  if (last === "JOB_STATE_SUCCEEDED" || last === "JOB_STATE_FAILED" || last === "JOB_STATE_CANCELLED") break;
}
watched.cancel();

try {
  await call("SubmitJob", { job: { ...job, priority: 1.5 } });
} catch (error) {
  console.log(grpc.status[error.code], error.details); // the field, and the way out
}
jobs.close();
