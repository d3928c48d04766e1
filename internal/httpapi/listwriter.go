package httpapi

import (
	"bufio"
	"bytes"
	"encoding/json"
	"net/http"
)

// listWriter answers with a JSON object that ends in a list of any length, whose
// elements are written as they come: the memory it takes does not grow with it. The answer
// begins with the first element, so that a failure before it gets an ordinary one.
type listWriter struct {
	w     http.ResponseWriter
	out   *bufio.Writer
	one   bytes.Buffer // an element
	enc   *json.Encoder
	head  []byte
	begun bool
	some  bool
}

// newListWriter writes {"key": value, "list": [...]}; an empty key is left out.
func newListWriter(w http.ResponseWriter, key, value, list string) *listWriter {
	l := &listWriter{w: w, out: bufio.NewWriterSize(w, 32<<10)}
	l.enc = json.NewEncoder(&l.one)
	l.enc.SetEscapeHTML(false)
	l.head = []byte(`{`)
	if key != "" {
		v, _ := json.Marshal(value) // a string always encodes
		l.head = append(append(append(l.head, `"`+key+`":`...), v...), ',')
	}
	l.head = append(l.head, `"`+list+`":[`...)
	return l
}

func (l *listWriter) begin() {
	if l.begun {
		return
	}
	l.begun = true
	l.w.Header().Set("Content-Type", "application/json")
	l.w.WriteHeader(http.StatusOK)
	_, _ = l.out.Write(l.head) // an error stays in the buffer and comes again
}

func (l *listWriter) add(v any) error {
	l.begin()
	if l.some {
		_ = l.out.WriteByte(',')
	}
	l.some = true
	l.one.Reset()
	if err := l.enc.Encode(v); err != nil {
		panic(err) // only types of package api come here, and those encode
	}
	_, err := l.out.Write(bytes.TrimSuffix(l.one.Bytes(), []byte("\n")))
	return clientGone(err)
}

// end closes the list, adds rest, which begins with a comma, and closes the object.
func (l *listWriter) end(rest string) error {
	l.begin()
	_, _ = l.out.WriteString("]" + rest + "}\n")
	return clientGone(l.out.Flush())
}
