package e2bapi

import (
	"context"
	"encoding/json"
	"errors"
	"mime"
	"net/http"
	"strings"

	"connectrpc.com/connect"

	"hutch.dev/hutch"
)

// maxMessage bounds one message of a client: input for a process, at the most.
const maxMessage = 16 << 20

// jsonCodec is the only encoding that E2B's clients use. Their messages are plain structs
// here: generated ones would bring a second encoding that nobody asks for.
type jsonCodec struct{}

func (jsonCodec) Name() string                        { return "json" }
func (jsonCodec) Marshal(v any) ([]byte, error)       { return json.Marshal(v) }
func (jsonCodec) Unmarshal(b []byte, v any) error     { return json.Unmarshal(b, v) }
func (jsonCodec) MarshalStable(v any) ([]byte, error) { return json.Marshal(v) }
func (jsonCodec) IsBinary() bool                      { return false }

// empty is a message without members.
type empty struct{}

// rpcMux routes the calls of the agent's two services.
func (a *API) rpcMux() http.Handler {
	mux := http.NewServeMux()
	unary(mux, a, "/process.Process/List", a.listProcesses)
	stream(mux, a, "/process.Process/Start", a.startProcess)
	stream(mux, a, "/process.Process/Connect", a.connectProcess)
	unary(mux, a, "/process.Process/Update", a.updateProcess)
	unary(mux, a, "/process.Process/SendInput", a.sendInput)
	mux.Handle("/process.Process/StreamInput", connect.NewClientStreamHandler("/process.Process/StreamInput",
		func(ctx context.Context, in *connect.ClientStream[streamInput]) (*connect.Response[empty], error) {
			return answer(a, ctx, &empty{}, a.streamInput(ctx, in))
		}, options()...))
	unary(mux, a, "/process.Process/SendSignal", a.sendSignal)
	unary(mux, a, "/process.Process/CloseStdin", a.closeStdin)

	unary(mux, a, "/filesystem.Filesystem/Stat", a.stat)
	unary(mux, a, "/filesystem.Filesystem/MakeDir", a.makeDir)
	unary(mux, a, "/filesystem.Filesystem/Move", a.move)
	unary(mux, a, "/filesystem.Filesystem/ListDir", a.listDir)
	unary(mux, a, "/filesystem.Filesystem/Remove", a.remove)
	stream(mux, a, "/filesystem.Filesystem/WatchDir", a.watchDir)
	unary(mux, a, "/filesystem.Filesystem/CreateWatcher", a.createWatcher)
	unary(mux, a, "/filesystem.Filesystem/GetWatcherEvents", a.watcherEvents)
	unary(mux, a, "/filesystem.Filesystem/RemoveWatcher", a.removeWatcher)
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		writeFailure(w, hutch.Errorf(hutch.CodeNotFound, "the agent has no call %s %.200s", r.Method, r.URL.Path))
	})
	return onlyJSON(mux)
}

func options() []connect.HandlerOption {
	return []connect.HandlerOption{
		connect.WithCodec(jsonCodec{}), connect.WithReadMaxBytes(maxMessage),
		// Answers are small, or a stream that nobody compresses.
		connect.WithCompressMinBytes(4 << 10),
	}
}

// onlyJSON refuses the encodings that the library would offer and this package has no
// messages for.
func onlyJSON(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		typ, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
		known := typ == "application/json" || typ == "application/connect+json"
		if r.Method == http.MethodPost && strings.Contains(r.URL.Path, ".") && (err != nil || !known) {
			w.Header().Set("Accept-Post", "application/json, application/connect+json")
			writeJSON(w, http.StatusUnsupportedMediaType, failure{
				Code: http.StatusUnsupportedMediaType, Message: "calls are made in JSON: send application/json, or application/connect+json for streams",
			})
			return
		}
		next.ServeHTTP(w, r)
	})
}

// unary adds a call with one message each way.
func unary[Req, Res any](mux *http.ServeMux, a *API, procedure string, fn func(context.Context, *Req) (*Res, error)) {
	mux.Handle(procedure, connect.NewUnaryHandler(procedure, func(ctx context.Context, r *connect.Request[Req]) (*connect.Response[Res], error) {
		res, err := fn(ctx, r.Msg)
		return answer(a, ctx, res, err)
	}, options()...))
}

// stream adds a call that is answered with a stream. fn returns once the stream is over.
func stream[Req, Res any](mux *http.ServeMux, a *API, procedure string, fn func(context.Context, *Req, *frames[Res]) error) {
	mux.Handle(procedure, connect.NewServerStreamHandler(procedure, func(ctx context.Context, r *connect.Request[Req], s *connect.ServerStream[Res]) error {
		out := newFrames(s, a.keepalive(r.Header()))
		err := fn(ctx, r.Msg, out)
		out.close()
		_, err = answer(a, ctx, &empty{}, err)
		return err
	}, options()...))
}

// answer turns the end of a call into what the client is sent. When the sandbox has gone
// it breaks the connection: its clients take that, and that health is a 502, for the
// sandbox's end, and a clean end for a fault of the protocol.
func answer[Res any](a *API, ctx context.Context, res *Res, err error) (*connect.Response[Res], error) {
	if err == nil {
		return connect.NewResponse(res), nil
	}
	var ce *connect.Error
	if errors.As(err, &ce) {
		return nil, ce
	}
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return nil, connect.NewError(connect.CodeDeadlineExceeded, errors.New("the time that the call may take is over"))
	}
	acc := accountOf(ctx)
	switch {
	case ctx.Err() != nil:
		err = context.Cause(ctx) // the server's own stop, or a caller who left
	case a.hasGone(ctx, acc.sb, err):
		panic(http.ErrAbortHandler)
	}
	he := explain(err, acc.user)
	shown := renderingOf(he.Code)
	if shown.rpc == connect.CodeInternal {
		a.log.Error("agent call", "sandbox", acc.sb.ID, "error", err)
	}
	return nil, connect.NewError(shown.rpc, errors.New(he.Message))
}

// rpcError makes an error with a code that ours do not have.
func rpcError(code connect.Code, message string) error {
	return connect.NewError(code, errors.New(message))
}
