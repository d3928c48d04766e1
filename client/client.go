// Package client is the Go client of Hutch's native API.
//
// It owns the conversation: keys, retries, one Idempotency-Key for all attempts of a
// call, and going on with a broken stream where it broke. The types on the wire are
// package api's. It keeps no state between calls and decides nothing about sandboxes.
//
// What is tried again: calls that failed with a retryable code or without an answer,
// and only those that are safe to repeat, which is all but [Client.WriteStdin], uploads of
// what cannot be read twice, and exclusive writes that may have been done. Waits have full
// jitter and are no shorter than the server's Retry-After. Errors are [*Error], and errors.Is
// works with the sentinels of package hutch.
//
// A Client is safe for concurrent use. Start with [New], [Client.CreateSandbox] and
// [Client.Exec].
package client

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	mathrand "math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"hutch.dev/hutch/api"
	"hutch.dev/hutch/internal/x/backoff"
)

// Client talks to one server with one key.
type Client struct {
	base      string // without a slash at the end
	key       string
	http      *http.Client
	userAgent string
	retries   int
	backoff   backoff.Policy
	maxWait   time.Duration
	silence   time.Duration

	now    func() time.Time
	random func() float64
	sleep  func(context.Context, time.Duration) error
}

// Option changes a Client that is being made.
type Option func(*Client)

// WithKey has every call made with an API key.
func WithKey(key string) Option { return func(c *Client) { c.key = key } }

// WithHTTPClient has calls go through h. It should have no total timeout: commands
// take as long as they take.
func WithHTTPClient(h *http.Client) Option { return func(c *Client) { c.http = h } }

// WithUserAgent names the program to the server.
func WithUserAgent(name string) Option { return func(c *Client) { c.userAgent = name } }

// WithRetries sets how often a call is tried again; 4 by default, 0 = never.
func WithRetries(n int) Option { return func(c *Client) { c.retries = n } }

const (
	defaultRetries = 4
	// With 4 retries and these, a caller waits 3.5 s on average before giving up, 7.5 s at most.
	backoffBase = 500 * time.Millisecond
	backoffCap  = 10 * time.Second
	// maxRetryAfter is the longest Retry-After that is waited for; above it the error is returned.
	maxRetryAfter = 30 * time.Second
	// maxSilence is how long an answer that has begun may pause. The server sends
	// something every 5 s, so after this the connection is dead, not slow.
	maxSilence = 60 * time.Second
	// lastsLong is how long a stream's connection has to last for it to begin anew with the
	// retries, though nothing came: longer than one that is dead is waited for.
	lastsLong = 2 * maxSilence
	// headerTimeout is how long an answer may take to begin: a create or a cancel at the
	// server's own limits, doubled.
	headerTimeout = 4 * time.Minute
	// maxAnswer bounds an answer in memory: two streams at the largest budget, as text
	// where each byte takes six, and as base64.
	maxAnswer = 512 << 20
)

// New returns a Client for the server at baseURL. It does no I/O.
func New(baseURL string, opts ...Option) (*Client, error) {
	u, err := url.Parse(baseURL)
	if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" {
		return nil, fmt.Errorf("server address %q: want something like http://127.0.0.1:8080", baseURL)
	}
	transport := &http.Transport{
		Proxy:                 http.ProxyFromEnvironment,
		DialContext:           (&net.Dialer{Timeout: 10 * time.Second, KeepAlive: 30 * time.Second}).DialContext,
		TLSHandshakeTimeout:   10 * time.Second,
		ResponseHeaderTimeout: headerTimeout,
		IdleConnTimeout:       90 * time.Second,
		MaxIdleConnsPerHost:   64,
		ForceAttemptHTTP2:     true,
	}
	c := &Client{
		base: strings.TrimRight(baseURL, "/"), http: &http.Client{Transport: transport},
		userAgent: "hutch-go", retries: defaultRetries,
		backoff: backoff.Policy{Base: backoffBase, Cap: backoffCap}, maxWait: maxRetryAfter, silence: maxSilence,
		now: time.Now, random: mathrand.Float64, sleep: backoff.Sleep,
	}
	for _, o := range opts {
		o(c)
	}
	return c, nil
}

// call is one logical request, however many attempts it takes.
type call struct {
	method string
	path   string // escaped, beginning with a slash
	query  url.Values
	body   any // sent as JSON; nil = none
	header http.Header
	key    string // Idempotency-Key
}

func get(path string, query url.Values) call {
	return call{method: http.MethodGet, path: path, query: query}
}

// change is a mutating call, with an Idempotency-Key of its own.
func change(method, path string, body any) call {
	return call{method: method, path: path, body: body, key: rand.Text()}
}

// pathOf joins path elements, escaped, behind the API's version.
func pathOf(elems ...string) string {
	var b strings.Builder
	b.WriteString(api.Version)
	for _, e := range elems {
		b.WriteByte('/')
		b.WriteString(url.PathEscape(e))
	}
	return b.String()
}

// send makes one attempt and returns an answer below 400; the caller closes its body.
func (c *Client) send(ctx context.Context, q call) (*http.Response, error) {
	var body io.Reader
	if q.body != nil {
		b, err := json.Marshal(q.body)
		if err != nil {
			return nil, fmt.Errorf("encode request: %w", err)
		}
		body = bytes.NewReader(b)
	}
	req, err := c.request(ctx, q, body)
	if err != nil {
		return nil, err
	}
	if q.body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	return c.answer(req)
}

func (c *Client) request(ctx context.Context, q call, body io.Reader) (*http.Request, error) {
	u := c.base + q.path
	if len(q.query) > 0 {
		u += "?" + q.query.Encode()
	}
	req, err := http.NewRequestWithContext(ctx, q.method, u, body)
	if err != nil {
		return nil, fmt.Errorf("make request: %w", err)
	}
	for k, v := range q.header {
		req.Header[k] = v
	}
	req.Header.Set("User-Agent", c.userAgent)
	if c.key != "" {
		req.Header.Set("Authorization", "Bearer "+c.key)
	}
	if q.key != "" {
		req.Header.Set(api.HeaderIdempotencyKey, q.key)
	}
	return req, nil
}

func (c *Client) answer(req *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancelCause(req.Context())
	res, err := c.http.Do(req.WithContext(ctx))
	if err != nil {
		cancel(nil)
		return nil, &lostError{err}
	}
	res.Body = newWatched(res.Body, c.silence, cancel)
	if res.StatusCode >= 400 {
		err := readError(res)
		_ = res.Body.Close()
		return nil, err
	}
	return res, nil
}

// do makes a call and decodes its answer into out, which may be nil.
func (c *Client) do(ctx context.Context, q call, out any) error {
	_, err := c.retry(ctx, q, func(res *http.Response) error {
		return decodeAnswer(res, out)
	})
	return err
}

// retry makes attempts until one succeeds or the failure is final. use reads an answer,
// and its failure to do so counts as the attempt's. The header is the last answer's.
func (c *Client) retry(ctx context.Context, q call, use func(*http.Response) error) (http.Header, error) {
	for n := 0; ; n++ {
		var header http.Header
		res, err := c.send(ctx, q)
		if err == nil {
			header = res.Header
			err = use(res)
			_ = res.Body.Close()
		}
		if err == nil {
			return header, nil
		}
		if !c.again(ctx, n, err) {
			return nil, err
		}
	}
}

// again waits before the attempt after failed attempt n, or reports that there is to be none.
func (c *Client) again(ctx context.Context, n int, err error) bool {
	if n >= c.retries || ctx.Err() != nil || !retryable(err) {
		return false
	}
	wait := c.backoff.Delay(n, c.random)
	var e *Error
	if errors.As(err, &e) && e.RetryAfter > 0 {
		if e.RetryAfter > c.maxWait {
			return false
		}
		// On top, so that callers refused together do not come back together.
		wait += e.RetryAfter
	}
	return c.sleep(ctx, wait) == nil
}

// decodeAnswer reads a JSON answer; a cut or foreign one is a lost answer.
func decodeAnswer(res *http.Response, out any) error {
	b, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer+1))
	if err != nil {
		return &lostError{err}
	}
	if len(b) > maxAnswer {
		return fmt.Errorf("the answer of %s is over %d bytes", res.Request.URL.Path, maxAnswer)
	}
	if out == nil || res.StatusCode == http.StatusNoContent {
		return nil
	}
	if err := json.Unmarshal(b, out); err != nil {
		return &lostError{fmt.Errorf("decode the answer of %s: %w", res.Request.URL.Path, err)}
	}
	return nil
}
