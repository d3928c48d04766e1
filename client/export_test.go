package client

import (
	"context"
	"time"
)

// WithClock replaces chance and waiting.
func WithClock(random func() float64, sleep func(context.Context, time.Duration) error) Option {
	return func(c *Client) { c.random, c.sleep = random, sleep }
}

// WithNow replaces the time.
func WithNow(now func() time.Time) Option { return func(c *Client) { c.now = now } }

// WithSilence sets how long an answer may pause.
func WithSilence(d time.Duration) Option { return func(c *Client) { c.silence = d } }
