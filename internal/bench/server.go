package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"

	"hutch.dev/hutch"
	"hutch.dev/hutch/api"
	"hutch.dev/hutch/client"
)

// Server is the server that is measured, as its callers see it.
type Server struct {
	API  *client.Client
	URL  string       // of the server, without a slash at the end
	Key  string       // API key
	HTTP *http.Client // for calls whose bodies the Go client does not hand out; has no time limit
	PID  int          // its process, when it is on this machine and ours to look at; else 0
	Host *Host        // the same in full, for those that look at more; else nil
}

// request makes a request for a path of the API.
func (s Server) request(ctx context.Context, method, path string, q url.Values, body io.Reader) (*http.Request, error) {
	req, err := http.NewRequestWithContext(ctx, method, strings.TrimRight(s.URL, "/")+api.Version+path+"?"+q.Encode(), body)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Authorization", "Bearer "+s.Key)
	return req, nil
}

// send makes a call. Any answer but 200 is an error, with what the server says.
func (s Server) send(req *http.Request) (*http.Response, error) {
	res, err := s.HTTP.Do(req)
	if err != nil {
		return nil, err
	}
	if res.StatusCode == http.StatusOK {
		return res, nil
	}
	defer res.Body.Close()
	const most = 500
	said, err := io.ReadAll(io.LimitReader(res.Body, most))
	return nil, errors.Join(fmt.Errorf("%s %s: %s: %s", req.Method, req.URL.Path, res.Status, said), err)
}

// upload writes size bytes of content to the file at path.
func (s Server) upload(ctx context.Context, sid hutch.SandboxID, path string, content io.Reader, size int64) error {
	req, err := s.request(ctx, http.MethodPut, "/sandboxes/"+url.PathEscape(string(sid))+"/fs", url.Values{"path": {path}, "user": {fileUser}}, content)
	if err != nil {
		return err
	}
	req.ContentLength = size
	res, err := s.send(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	var w api.Written
	if err := json.NewDecoder(res.Body).Decode(&w); err != nil {
		return fmt.Errorf("decode the answer: %w", err)
	}
	if w.Bytes != size {
		return fmt.Errorf("the server says that %d of %d bytes are there", w.Bytes, size)
	}
	return nil
}

// download opens the file at path.
func (s Server) download(ctx context.Context, sid hutch.SandboxID, path string) (io.ReadCloser, error) {
	req, err := s.request(ctx, http.MethodGet, "/sandboxes/"+url.PathEscape(string(sid))+"/fs", url.Values{"path": {path}, "user": {fileUser}}, nil)
	if err != nil {
		return nil, err
	}
	res, err := s.send(req)
	if err != nil {
		return nil, err
	}
	return res.Body, nil
}
