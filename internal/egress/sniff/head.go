package sniff

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"strings"
)

const (
	// MaxHead bounds the head of a request. Servers take 8 to 64 KiB.
	MaxHead   = 64 << 10
	maxMethod = 24
	maxFields = 200
	maxDigits = 15 // of a Content-Length
)

// What is wrong with a head is said in a sentence each, which the one who sent it gets.
var (
	errHeadLong    = fmt.Errorf("the head of the request is longer than %d KiB", MaxHead>>10)
	errLineEnd     = errors.New("a line of the request's head ends without CR LF")
	errRequestLine = errors.New("the request line is malformed")
	errVersion     = errors.New("the request is neither HTTP/1.0 nor HTTP/1.1")
	errField       = errors.New("a header field of the request is malformed")
	errFolded      = errors.New("a header field of the request is folded over lines")
	errFields      = fmt.Errorf("the request has more than %d header fields", maxFields)
	errNoHost      = errors.New("the request has no Host")
	errTwoHosts    = errors.New("the request has more than one Host")
	errOtherHost   = errors.New("the request's target and its Host are not the same")
	errHost        = errors.New("the request's Host is malformed")
	errTarget      = errors.New("the request's target is neither a path nor an http:// URL")
	errConnect     = errors.New("CONNECT asks for a way to somewhere else")
	errLength      = errors.New("the request's Content-Length is malformed, or there is more than one")
	errCoding      = errors.New("the request's Transfer-Encoding is not just \"chunked\"")
	errTwoLengths  = errors.New("the request has both Content-Length and Transfer-Encoding")
	errHopByHop    = errors.New("the request's Connection field names a field that must reach the server")
	errUpgradeBody = errors.New("a request for another protocol (Upgrade) must not have a body")
	errUpgrade     = errors.New("the request asks for HTTP/2 on a connection without TLS (Upgrade), where it could not be read")
)

// Head is the head of a request.
type Head struct {
	Method string
	// Path is the path with the query; "*" for all of the server.
	Path string
	// Host is what the request is for, as sent: in its target if that is a URL, which is then
	// the same as its Host. It may have a port. Empty only in HTTP/1.0.
	Host string
	// Upgrade is that the connection is another protocol's from the end of the head, if the server
	// agrees.
	Upgrade bool
	// Body is what follows the head.
	Body Body
	Size int // of the head in bytes

	mining bool // a field says that a miner asks
}

// ParseHead reads the head of a request that b begins with. need > 0 is that it takes at
// least so many bytes. It is stricter than servers are: no two of them may read what passes
// in different ways. CONNECT is an error.
func ParseHead(b []byte) (h Head, need int, err error) {
	end := bytes.Index(b, []byte("\r\n\r\n"))
	switch {
	case end < 0 && len(b) >= MaxHead, end+4 > MaxHead:
		return h, 0, errHeadLong
	case end < 0:
		// What is wrong already need not be waited for.
		if i := bytes.IndexByte(b, '\n'); i == 0 || i > 0 && b[i-1] != '\r' {
			return h, 0, errLineEnd
		}
		if bytes.Contains(b, []byte("\n\n")) || bytes.Contains(b, []byte("\n\r\n")) {
			return h, 0, errLineEnd
		}
		return h, len(b) + 1, nil
	}
	lines := strings.Split(string(b[:end]), "\r\n")
	for _, l := range lines {
		if strings.ContainsAny(l, "\r\n\x00") {
			return h, 0, errLineEnd
		}
	}
	p := headParser{length: -1}
	if err := p.requestLine(lines[0]); err != nil {
		return h, 0, err
	}
	if len(lines)-1 > maxFields {
		return h, 0, errFields
	}
	for _, l := range lines[1:] {
		if err := p.field(l); err != nil {
			return h, 0, err
		}
	}
	h, err = p.finish()
	h.Size = end + 4
	return h, 0, err
}

type headParser struct {
	head       Head
	minor      byte   // HTTP/1.minor
	target     string // host of the target; empty if it is a path
	hosts      int
	host       string
	length     int64 // -1 = none
	chunked    bool
	connection []string // options of Connection fields, in lower case
	upgrade    []string // protocols of Upgrade fields, in lower case
}

func (p *headParser) requestLine(l string) error {
	parts := strings.Split(l, " ")
	if len(parts) != 3 || !isToken([]byte(parts[0])) || parts[0] == "" || parts[1] == "" || len(parts[0]) > maxMethod {
		return errRequestLine
	}
	for _, c := range []byte(parts[1]) {
		if c <= ' ' || c >= 0x7f {
			return errRequestLine
		}
	}
	switch parts[2] {
	case "HTTP/1.0", "HTTP/1.1":
		p.minor = parts[2][len(parts[2])-1]
	default:
		return errVersion
	}
	p.head.Method = parts[0]
	target := parts[1]
	switch {
	case parts[0] == "CONNECT":
		return errConnect
	case target[0] == '/', target == "*" && parts[0] == "OPTIONS":
		p.head.Path = target
		return nil
	}
	rest, ok := cutPrefixFold(target, "http://")
	if !ok {
		return errTarget
	}
	i := strings.IndexAny(rest, "/?#")
	if i < 0 {
		i = len(rest)
	}
	p.target, p.head.Path = rest[:i], rest[i:]
	if !strings.HasPrefix(p.head.Path, "/") {
		p.head.Path = "/" + p.head.Path
	}
	if !isHost(p.target) {
		return errTarget
	}
	return nil
}

func (p *headParser) field(l string) error {
	if l != "" && (l[0] == ' ' || l[0] == '\t') {
		return errFolded
	}
	name, value, ok := strings.Cut(l, ":")
	if !ok || name == "" || !isToken([]byte(name)) {
		return errField
	}
	value = strings.Trim(value, " \t")
	for _, c := range []byte(value) {
		if c < ' ' && c != '\t' || c == 0x7f {
			return errField
		}
	}
	switch strings.ToLower(name) {
	case "host":
		p.hosts++
		p.host = value
	case "content-length":
		n, ok := parseDecimal(value)
		if !ok || p.length >= 0 {
			return errLength
		}
		p.length = n
	case "transfer-encoding":
		if p.chunked || !strings.EqualFold(value, "chunked") {
			return errCoding
		}
		p.chunked = true
	case "connection", "proxy-connection":
		p.connection = append(p.connection, options(value)...)
	case "upgrade":
		p.upgrade = append(p.upgrade, options(value)...)
	case "x-mining-extensions", "x-mining-hashrate":
		p.head.mining = true
	}
	// Some servers take "_" for "-": what only they would see could say something else.
	switch strings.ReplaceAll(strings.ToLower(name), "_", "-") {
	case "content-length", "transfer-encoding":
		if strings.Contains(name, "_") {
			return errField
		}
	}
	return nil
}

func (p *headParser) finish() (Head, error) {
	switch {
	case p.hosts > 1:
		return Head{}, errTwoHosts
	case p.hosts == 0 && p.minor == '1':
		return Head{}, errNoHost
	case p.hosts == 1 && !isHost(p.host) && (p.host != "" || p.minor == '1'):
		return Head{}, errHost
	case p.target != "" && p.hosts == 1 && !strings.EqualFold(p.target, p.host):
		return Head{}, errOtherHost
	case p.chunked && p.length >= 0:
		return Head{}, errTwoLengths
	case p.chunked && p.minor == '0':
		return Head{}, errCoding
	}
	h := p.head
	h.Host = p.host
	if p.target != "" {
		h.Host = p.target
	}
	for _, o := range p.connection {
		switch o {
		case "host", "content-length", "transfer-encoding", "trailer":
			return Head{}, errHopByHop
		case "upgrade":
			h.Upgrade = len(p.upgrade) > 0
		}
	}
	for _, u := range p.upgrade {
		if strings.HasPrefix(u, "h2c") || strings.HasPrefix(u, "http/2") || strings.HasPrefix(u, "tls/") {
			return Head{}, errUpgrade
		}
	}
	h.Body = Body{left: max(p.length, 0), chunked: p.chunked}
	if h.Upgrade && !h.Body.Empty() {
		return Head{}, errUpgradeBody
	}
	return h, nil
}

// options are the members of a list, in lower case.
func options(value string) []string {
	var out []string
	for o := range strings.SplitSeq(value, ",") {
		if o = strings.ToLower(strings.Trim(o, " \t")); o != "" {
			out = append(out, o)
		}
	}
	return out
}

// isHost reports whether s is a host with or without a port: a name, an IPv4 address, or an
// IPv6 address in brackets. Whether the name is one is for the policy to say.
func isHost(s string) bool {
	host := s
	if i := strings.LastIndexByte(s, ':'); i >= 0 && !strings.HasSuffix(s, "]") {
		host = s[:i]
		if n, ok := parseDecimal(s[i+1:]); !ok || n < 1 || n > 65535 {
			return false
		}
	}
	if bare, ok := strings.CutPrefix(host, "["); ok {
		bare, closed := strings.CutSuffix(bare, "]")
		a, err := netip.ParseAddr(bare)
		return closed && err == nil && a.Is6() && a.Zone() == ""
	}
	if host == "" || len(host) > 254 {
		return false
	}
	for _, c := range []byte(host) {
		if c != '-' && c != '.' && c != '_' && (c < '0' || c > '9') && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') {
			return false
		}
	}
	return true
}

// SplitHost takes a Host apart: the name or address, and the port, 0 if there is none.
func SplitHost(s string) (host string, port uint16) {
	if i := strings.LastIndexByte(s, ':'); i >= 0 && !strings.HasSuffix(s, "]") {
		n, _ := parseDecimal(s[i+1:])
		return s[:i], uint16(n)
	}
	return s, 0
}

// isToken reports whether b is one, RFC 9110 5.6.2; of no bytes too.
func isToken(b []byte) bool {
	for _, c := range b {
		if c <= ' ' || c >= 0x7f || strings.IndexByte("\"(),/:;<=>?@[\\]{}", c) >= 0 {
			return false
		}
	}
	return true
}

// parseDecimal reads digits and nothing else.
func parseDecimal(s string) (int64, bool) {
	if s == "" || len(s) > maxDigits {
		return 0, false
	}
	n := int64(0)
	for _, c := range []byte(s) {
		if c < '0' || c > '9' {
			return 0, false
		}
		n = n*10 + int64(c-'0')
	}
	return n, true
}

func cutPrefixFold(s, prefix string) (string, bool) {
	if len(s) < len(prefix) || !strings.EqualFold(s[:len(prefix)], prefix) {
		return s, false
	}
	return s[len(prefix):], true
}
