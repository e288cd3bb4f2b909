-- +goose Up
CREATE TABLE report_jobs (
    id         uuid        PRIMARY KEY,
    report     text        NOT NULL CHECK (report <> ''),
    state      text        NOT NULL DEFAULT 'QUEUED' CHECK (state IN ('QUEUED', 'RUNNING', 'DONE', 'FAILED')),
    attempts   int         NOT NULL DEFAULT 0,
    progress   int         NOT NULL DEFAULT 0 CHECK (progress BETWEEN 0 AND 100),
    result     text,
    error      text,
    queued_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    CHECK ((state = 'DONE') = (result IS NOT NULL))
);

CREATE INDEX report_jobs_open ON report_jobs (state, queued_at) WHERE state <> 'DONE'; -- also those that an operator looks for

COMMENT ON TABLE  report_jobs           IS 'One row for each job, for good. Written only with the fencing token of the job.';
COMMENT ON COLUMN report_jobs.state     IS 'FAILED is given up, until an operator sets it back with jobs retry.';
COMMENT ON COLUMN report_jobs.attempts  IS 'How many owners have begun it, without those that were interrupted.';
COMMENT ON COLUMN report_jobs.progress  IS 'Percent, as its owner last said.';
COMMENT ON COLUMN report_jobs.error     IS 'How the latest attempt that came to an end has failed.';
COMMENT ON COLUMN report_jobs.queued_at IS 'When it was added or last begun. The oldest is next, so one that keeps failing lets the others through.';

-- Each job is a resource: an owner writes RUNNING and then DONE with one token, and an owner that
-- was replaced writes nothing any more.
SELECT fencedb.protect('report_jobs', resource => 'job:{id}');

-- +goose Down
SELECT fencedb.unprotect('report_jobs');
DROP TABLE report_jobs;
