package ociimage

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"hutch.dev/hutch"
)

// stallTime is how long a registry may send nothing of a blob before it counts as gone.
const stallTime = 60 * time.Second

// openRegistry finds an image in a registry.
func openRegistry(ctx context.Context, src Source) (*Image, error) {
	opts := []name.Option{name.WeakValidation}
	if src.Insecure {
		opts = append(opts, name.Insecure)
	}
	ref, err := name.ParseReference(src.Ref, opts...)
	if err != nil {
		return nil, hutch.Errorf(hutch.CodeBadRequest, "%q is no image reference (want host/path:tag or host/path@sha256:…)", src.Ref)
	}
	rt, err := newTransport(src)
	if err != nil {
		return nil, err
	}
	pull, err := remote.NewPuller(remote.WithTransport(rt), remote.WithUserAgent("hutch"), login(src))
	if err != nil {
		return nil, fmt.Errorf("prepare to read from the registry: %w", err)
	}
	from := registry{repo: ref.Context(), pull: pull}
	got, err := pull.Get(ctx, ref)
	if err != nil {
		rt.CloseIdleConnections()
		return nil, from.error(err, "find image "+src.Ref)
	}
	im, err := func() (*Image, error) {
		d, raw, err := resolve(ctx, from, got.Descriptor, got.Manifest, 0)
		if err != nil {
			return nil, err
		}
		im, err := fromManifest(ctx, from, d, raw)
		if err != nil {
			return nil, err
		}
		im.Name = pinned(ref, d.Digest)
		return im, nil
	}()
	if err != nil {
		rt.CloseIdleConnections()
		return nil, err
	}
	im.close = func() error { rt.CloseIdleConnections(); return nil }
	return im, nil
}

// pinned is a reference with the digest of what it led to.
func pinned(ref name.Reference, digest v1.Hash) string {
	if tag, ok := ref.(name.Tag); ok {
		return "image " + tag.Name() + "@" + digest.String()
	}
	return "image " + ref.Context().Name() + "@" + digest.String()
}

// login is how to authenticate.
func login(src Source) remote.Option {
	switch {
	case src.Username != "" || src.Password != "":
		return remote.WithAuth(&authn.Basic{Username: src.Username, Password: src.Password})
	case src.MachineLogin:
		return remote.WithAuthFromKeychain(authn.DefaultKeychain)
	}
	return remote.WithAuth(authn.Anonymous)
}

// closingTransport is a transport whose connections can be closed.
type closingTransport struct {
	*http.Transport
	insecure bool
}

// RoundTrip refuses plain HTTP unless the caller waived TLS: the library would fall back
// to it for names that look local, and with it the password.
func (t closingTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.URL.Scheme != "https" && !t.insecure {
		return nil, hutch.Errorf(hutch.CodeBadRequest, "the registry speaks no TLS; allow an insecure registry if that is meant")
	}
	return t.Transport.RoundTrip(req)
}

// newTransport makes the connections to a registry.
func newTransport(src Source) (closingTransport, error) {
	conf := &tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: src.Insecure}
	if src.CAFile != "" {
		pem, err := os.ReadFile(src.CAFile)
		if err != nil {
			return closingTransport{}, fmt.Errorf("read the registry's certificate authority: %w", err)
		}
		pool, err := x509.SystemCertPool()
		if err != nil {
			pool = x509.NewCertPool()
		}
		if !pool.AppendCertsFromPEM(pem) {
			return closingTransport{}, hutch.Errorf(hutch.CodeBadRequest, "the file of the registry's certificate authority has no certificate in it")
		}
		conf.RootCAs = pool
	}
	return closingTransport{insecure: src.Insecure, Transport: &http.Transport{
		Proxy:                 http.ProxyFromEnvironment,
		DialContext:           (&net.Dialer{Timeout: 15 * time.Second, KeepAlive: 30 * time.Second}).DialContext,
		TLSClientConfig:       conf,
		TLSHandshakeTimeout:   15 * time.Second,
		ResponseHeaderTimeout: stallTime,
		ForceAttemptHTTP2:     true,
		MaxIdleConnsPerHost:   4,
		IdleConnTimeout:       30 * time.Second,
	}}, nil
}

// registry is the blobs of one repository.
type registry struct {
	repo name.Repository
	pull *remote.Puller
}

func (r registry) manifest(ctx context.Context, d v1.Descriptor) ([]byte, error) {
	if d.Size > maxManifest {
		return nil, hutch.Errorf(hutch.CodeTooLarge, "the image's manifest has %d bytes; %d are allowed", d.Size, maxManifest)
	}
	got, err := r.pull.Get(ctx, r.repo.Digest(d.Digest.String()))
	if err != nil {
		return nil, r.error(err, "read the image's manifest")
	}
	return got.Manifest, nil
}

func (r registry) blob(ctx context.Context, d v1.Descriptor) (io.ReadCloser, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	l, err := r.pull.Layer(ctx, r.repo.Digest(d.Digest.String()))
	if err == nil {
		var body io.ReadCloser
		if body, err = l.Compressed(); err == nil {
			return newStallGuard(body, cancel), nil
		}
	}
	cancel(nil)
	return nil, r.error(err, "read a part of the image")
}

// error says what went wrong at a registry: what a person must mend is named.
func (r registry) error(err error, doing string) error {
	// First, for the library tries plain HTTP next and reports that too.
	var unknown x509.UnknownAuthorityError
	if errors.As(err, &unknown) {
		return hutch.Wrap(hutch.CodeBadRequest, err, "%s: the certificate of %s is signed by nobody this machine knows; give its certificate authority", doing, r.repo.RegistryStr())
	}
	var e *hutch.Error
	if errors.As(err, &e) {
		return err
	}
	var t *transport.Error
	if errors.As(err, &t) {
		switch t.StatusCode {
		case http.StatusUnauthorized, http.StatusForbidden:
			return hutch.Wrap(hutch.CodeForbidden, err, "%s: the registry %s refuses: check the user name and the password, and that they may read %s", doing, r.repo.RegistryStr(), r.repo.RepositoryStr())
		case http.StatusNotFound:
			return hutch.Wrap(hutch.CodeNotFound, err, "%s: the registry %s does not have it", doing, r.repo.RegistryStr())
		case http.StatusTooManyRequests:
			return hutch.Wrap(hutch.CodeRateLimited, err, "%s: the registry %s wants fewer requests; try again later, or log in", doing, r.repo.RegistryStr())
		}
	}
	return fmt.Errorf("%s: %w", doing, err)
}

// stallGuard ends a download that stands still.
type stallGuard struct {
	body   io.ReadCloser
	timer  *time.Timer
	cancel context.CancelCauseFunc
}

var errStalled = errors.New("the registry sent nothing for " + stallTime.String())

func newStallGuard(body io.ReadCloser, cancel context.CancelCauseFunc) *stallGuard {
	g := &stallGuard{body: body, cancel: cancel}
	g.timer = time.AfterFunc(stallTime, func() { cancel(errStalled) })
	return g
}

func (g *stallGuard) Read(p []byte) (int, error) {
	g.timer.Reset(stallTime)
	n, err := g.body.Read(p)
	g.timer.Stop() // who reads slowly is no fault of the registry
	return n, err
}

func (g *stallGuard) Close() error {
	g.timer.Stop()
	err := g.body.Close()
	g.cancel(nil)
	return err
}
