package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
)

// processes is how many share the waiters.
const processes = 4

// crew is a load under way.
type crew []*member

// member is one process: this program again.
type member struct {
	cmd    *exec.Cmd
	stdin  io.Closer
	stdout bytes.Buffer
}

// hire starts the processes of a job and deals its waiters out to them. Those that did start are dismissed on error.
func hire(ctx context.Context, j job) (crew, error) {
	var c crew
	for n := range processes {
		part := j
		part.Waiters = (j.Waiters + n) / processes
		m, err := start(ctx, part)
		if err != nil {
			_, _ = c.dismiss()
			return nil, err
		}
		c = append(c, m)
	}
	return c, nil
}

func start(ctx context.Context, j job) (*member, error) {
	text, err := json.Marshal(j)
	if err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	m := &member{cmd: exec.CommandContext(ctx, self)}
	m.cmd.Env = append(os.Environ(), workerVar+"="+string(text))
	m.cmd.Stdout, m.cmd.Stderr = &m.stdout, os.Stderr
	if m.stdin, err = m.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	return m, m.cmd.Start()
}

// dismiss ends the load and returns the records of all processes as one.
func (c crew) dismiss() (all record, err error) {
	for _, m := range c {
		err = errors.Join(err, m.stdin.Close())
	}
	for n, m := range c {
		if failed := m.cmd.Wait(); failed != nil {
			err = errors.Join(err, fmt.Errorf("process %d: %w", n+1, failed))
			continue
		}
		var one record
		err = errors.Join(err, json.Unmarshal(m.stdout.Bytes(), &one))
		all.Turns, all.Trips = append(all.Turns, one.Turns...), append(all.Trips, one.Trips...)
	}
	return all, err
}
