package sniff

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
)

// hello is what Go's own client sends first.
func hello(t testing.TB, cfg *tls.Config) []byte {
	t.Helper()
	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	go func() { _ = tls.Client(a, cfg).HandshakeContext(context.Background()) }()
	head := make([]byte, recordHeader)
	if _, err := io.ReadFull(b, head); err != nil {
		t.Fatal(err)
	}
	body := make([]byte, binary.BigEndian.Uint16(head[3:]))
	if _, err := io.ReadFull(b, body); err != nil {
		t.Fatal(err)
	}
	return slices.Concat(head, body)
}

// handshake is a ClientHello with these extensions, in one record.
func handshake(extensions ...[]byte) []byte {
	body := append([]byte{3, 3}, make([]byte, 32)...)
	body = append(body, 0)             // session
	body = append(body, 0, 2, 0x13, 1) // suites
	body = append(body, 1, 0)          // compression
	if len(extensions) > 0 {
		all := slices.Concat(extensions...)
		body = append(binary.BigEndian.AppendUint16(body, uint16(len(all))), all...)
	}
	return record(message(body))
}

func message(body []byte) []byte {
	return append([]byte{typeClientHello, byte(len(body) >> 16), byte(len(body) >> 8), byte(len(body))}, body...)
}

func record(fragment []byte) []byte {
	return append([]byte{recordHandshake, 3, 1, byte(len(fragment) >> 8), byte(len(fragment))}, fragment...)
}

// split spreads the message of one record over records of n bytes.
func split(b []byte, n int) []byte {
	var out []byte
	for part := range slices.Chunk(b[recordHeader:], n) {
		out = append(out, record(part)...)
	}
	return out
}

func extension(kind uint16, body []byte) []byte {
	out := binary.BigEndian.AppendUint16(nil, kind)
	return append(binary.BigEndian.AppendUint16(out, uint16(len(body))), body...)
}

func serverName(names ...string) []byte {
	var list []byte
	for _, n := range names {
		list = append(binary.BigEndian.AppendUint16(append(list, 0), uint16(len(n))), n...)
	}
	return extension(extensionName, append(binary.BigEndian.AppendUint16(nil, uint16(len(list))), list...))
}

func TestHello(t *testing.T) {
	sni := serverName("api.example.com")
	outer := extension(extensionECH, append([]byte{0, 0, 1, 0, 1, 7, 0, 4}, 1, 2, 3, 4, 0, 1, 9))
	tests := map[string]struct {
		b    []byte
		want Hello
		err  error
	}{
		"Go's own":               {hello(t, &tls.Config{ServerName: "api.example.com", NextProtos: []string{"h2", "http/1.1"}}), Hello{Name: "api.example.com", ALPN: []string{"h2", "http/1.1"}}, nil},
		"Go's own without name":  {hello(t, &tls.Config{InsecureSkipVerify: true}), Hello{}, nil},
		"no extensions":          {handshake(), Hello{}, nil},
		"name":                   {handshake(sni), Hello{Name: "api.example.com"}, nil},
		"in single bytes":        {split(handshake(sni), 2), Hello{Name: "api.example.com"}, nil},
		"ECH, outer":             {handshake(sni, outer), Hello{Name: "api.example.com", Encrypted: true}, nil},
		"ECH, inner":             {handshake(sni, extension(extensionECH, []byte{1})), Hello{Name: "api.example.com", Encrypted: true}, nil},
		"ECH, GREASE":            {handshake(extension(extensionECH, append([]byte{0, 0, 1, 0, 1, 200, 0, 32}, make([]byte, 34)...)), sni), Hello{Name: "api.example.com", Encrypted: true}, nil},
		"ESNI, of the drafts":    {handshake(extension(extensionESNI, []byte{1, 2})), Hello{Encrypted: true}, nil},
		"early data":             {handshake(sni, extension(extensionEarlyData, nil)), Hello{Name: "api.example.com", EarlyData: true}, nil},
		"two names":              {handshake(serverName("api.example.com", "evil.example")), Hello{}, errHello},
		"two name extensions":    {handshake(sni, sni), Hello{}, errHello},
		"empty name":             {handshake(serverName("")), Hello{}, errHello},
		"no name in extension":   {handshake(serverName()), Hello{}, errHello},
		"name of another type":   {handshake(extension(extensionName, []byte{0, 4, 1, 0, 1, 'x'})), Hello{}, errHello},
		"name with a rest":       {handshake(extension(extensionName, []byte{0, 4, 0, 0, 1, 'x', 0})), Hello{}, errHello},
		"extension too long":     {handshake([]byte{0, 0, 0, 9, 1}), Hello{}, errHello},
		"rest behind the hello":  {record(append(handshake(sni)[recordHeader:], 1)), Hello{}, errHello},
		"another message":        {record([]byte{2, 0, 0, 0}), Hello{}, errNoHello},
		"empty record":           {record(nil), Hello{}, errHello},
		"alert in between":       {append(split(handshake(sni), 20)[:25], 21, 3, 1, 0, 2, 1, 0), Hello{}, errHello},
		"record too long":        {[]byte{22, 3, 1, 0x41, 0}, Hello{}, errHello},
		"message too long":       {record([]byte{1, 1, 0, 0}), Hello{}, errHelloLong},
		"too many records":       {split(handshake(sni, extension(9999, make([]byte, 200))), 1), Hello{}, errHelloLong},
		"ALPN with empty member": {handshake(extension(extensionALPN, []byte{0, 1, 0})), Hello{}, errHello},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if test.err == nil {
				test.want.Size = len(test.b)
			}
			h, need, err := ParseHello(test.b)
			if !errors.Is(err, test.err) || need != 0 {
				t.Fatalf("got %+v, need %d, %v; want %v", h, need, err, test.err)
			}
			if err == nil && (h.Name != test.want.Name || !slices.Equal(h.ALPN, test.want.ALPN) || h.Encrypted != test.want.Encrypted || h.EarlyData != test.want.EarlyData || h.Size != test.want.Size) {
				t.Errorf("got %+v, want %+v", h, test.want)
			}
			dripped, at := drip(t, test.b, false)
			if dripped.Protocol != TLS || (dripped.Err == nil) != (test.err == nil) || dripped.Hello.Name != h.Name && err == nil {
				t.Errorf("byte by byte it is %+v after %d", dripped, at)
			}
		})
	}
}

// drip looks at b as it comes byte by byte, or in small pieces if it is long, and checks what Look
// promises.
func drip(t testing.TB, b []byte, end bool) (First, int) {
	t.Helper()
	need := 1
	step := 1 + len(b)/500
	for i := step; i < len(b)+step; i += step {
		n := min(i, len(b))
		f, next := Look(b[:n], false)
		if n < need && next == 0 && f.Err == nil {
			t.Fatalf("%d bytes were said to be needed, and %d decided", need, n)
		}
		if next == 0 {
			return f, n
		}
		if next <= n {
			t.Fatalf("%d bytes are needed with %d there", next, n)
		}
		need = next
	}
	if !end {
		t.Fatalf("nothing was decided after all of %.200q", b)
	}
	f, _ := Look(b, true)
	return f, len(b)
}

func TestLookTellsProtocolsApart(t *testing.T) {
	tests := map[string]struct {
		b    string
		want Protocol
		end  bool // only once no more comes
	}{
		"http":               {"GET / HTTP/1.1\r\nHost: a.example\r\n\r\n", HTTP, false},
		"http, bad version":  {"GET / HTTP/2.0\r\n", HTTP, true},
		"http/2":             {string(preface), HTTP2, false},
		"http/2, in part":    {"PRI * HTT", Unknown, true},
		"http 0.9":           {"GET /\r\n", Unknown, false},
		"ssh":                {"SSH-2.0-OpenSSH_9.2\r\n", SSH, false},
		"mail":               {"EHLO me.example\r\n", Unknown, false},
		"redis":              {"*1\r\n$4\r\nPING\r\n", Unknown, false},
		"redis, inline":      {"PING\r\n", Unknown, false},
		"postgres":           {"\x00\x00\x00\x08\x04\xd2\x16\x2f", Unknown, false},
		"proxy, SOCKS":       {"\x05\x01\x00", Unknown, false},
		"DNS over TCP":       {"\x00\x1d\x00\x00\x01\x00", Unknown, false},
		"SSL 2":              {"\x80\x2e\x01\x00\x02", Unknown, false},
		"type 22 of others":  {"\x16\x01", Unknown, false},
		"a word without end": {strings.Repeat("A", maxMethod+1), Unknown, false},
		"TLS, cut":           {"\x16\x03\x01", TLS, true},
		"nothing":            {"", Unknown, true},
		"JSON":               {`{"jsonrpc":"2.0","method":"initialize","id":1}`, Unknown, false},
		"JSON, a login":      {`{"method":"login","params":{"login":"me","password":"x"}}`, Unknown, false},
		"JSON, cut":          {`{"jsonrpc":`, Unknown, true},
		"JSON, long":         {`{"x":"` + strings.Repeat("y", maxMining), Unknown, false},
		"stratum":            {`{"id": 1, "method": "mining.subscribe", "params": ["cgminer/4.10"]}` + "\n", Mining, false},
		"stratum, escaped":   {`{"params":[],"method":"\u006dining.authorize"}`, Mining, false},
		"stratum, batch":     {`[{"id":1,"method":"mining.configure"}]`, Mining, false},
		"stratum, spread":    {"{\n \"method\" :\n\t\"mining.subscribe\"\n}", Mining, false},
		"stratum, long":      {`{"method":"mining.subscribe","x":"` + strings.Repeat("y", maxMining), Mining, false},
		"monero":             {`{"id":1,"jsonrpc":"2.0","method":"login","params":{"login":"4A","pass":"x","agent":"x/6","algo":["rx/0"]}}`, Mining, false},
		"ethereum":           {`{"worker":"w","jsonrpc":"2.0","params":["0x"],"id":2,"method":"eth_submitLogin"}`, Mining, false},
		"getwork over HTTP":  {"POST / HTTP/1.1\r\nHost: pool.example\r\nX-Mining-Extensions: longpoll\r\n\r\n", Mining, false},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			f, _ := drip(t, []byte(test.b), test.end)
			if f.Protocol != test.want {
				t.Errorf("got %s (%v), want %s", f.Protocol, f.Err, test.want)
			}
			if test.end && f.Err == nil {
				t.Error("nothing says that it was cut off")
			}
		})
	}
}

func TestSecondHello(t *testing.T) {
	first := serverName("api.example.com")
	early := extension(extensionEarlyData, nil)
	again, other := handshake(first), handshake(serverName("evil.example"))
	changeCipher := []byte{20, 3, 3, 0, 1, 1}
	data := []byte{23, 3, 3, 0, 3, 'a', 'b', 'c'}
	keyExchange := record([]byte{16, 0, 0, 1, 9})
	tests := map[string]struct {
		first   []byte
		rest    []byte
		err     error
		settled bool
	}{
		"none":                             {handshake(first), slices.Concat(changeCipher, data), nil, true},
		"TLS 1.2":                          {handshake(first), keyExchange, nil, true},
		"same":                             {handshake(first), slices.Concat(changeCipher, again, data), nil, true},
		"other":                            {handshake(first), slices.Concat(changeCipher, other), errNameChanged, false},
		"other, spread":                    {handshake(first), split(other, 7), errNameChanged, false},
		"without a name":                   {handshake(first), handshake(), errNameChanged, false},
		"with ECH":                         {handshake(first), handshake(first, extension(extensionECH, []byte{1})), errNameChanged, false},
		"third":                            {handshake(first), slices.Concat(again, other), errNameChanged, false},
		"malformed":                        {handshake(first), record([]byte{1, 0, 0, 1, 3}), errHello, false},
		"early data, then same":            {handshake(first, early), slices.Concat(data, data, again), nil, false},
		"early data, then other":           {handshake(first, early), slices.Concat(data, data, other), errNameChanged, false},
		"without early data, then other":   {handshake(first), slices.Concat(data, other), nil, true}, // encrypted: no server reads it as a hello
		"no TLS":                           {handshake(first), []byte("hello"), nil, true},
		"early data, dripped change of it": {handshake(first, early), slices.Concat(data, changeCipher, data), nil, false},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			h, _, err := ParseHello(test.first)
			if err != nil {
				t.Fatal(err)
			}
			for _, size := range []int{1, 3, len(test.rest)} {
				r := NewRecords(h)
				var passed []byte
				var err error
				for part := range slices.Chunk(test.rest, size) {
					var out []byte
					if out, err = r.Next(part); err != nil {
						break
					}
					passed = append(passed, out...)
				}
				if !errors.Is(err, test.err) || r.Settled() != test.settled {
					t.Errorf("in pieces of %d: %v, settled %v", size, err, r.Settled())
				}
				if test.err == nil && !bytes.Equal(passed, test.rest) {
					t.Errorf("in pieces of %d: passed %x of %x", size, passed, test.rest)
				}
				if test.err != nil && bytes.Contains(passed, []byte("evil")) {
					t.Errorf("in pieces of %d: the other name passed", size)
				}
			}
		})
	}
}
