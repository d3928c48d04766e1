package guestlink

import (
	"bytes"
	"testing"
)

// decodeAll feeds wire to d in pieces of the given size and returns the data that
// came after the last whole control message accepted by want, and whether one came.
func decodeAll(d *decoder, wire []byte, piece int, want control) (data []byte, found bool) {
	for len(wire) > 0 {
		p := bytes.Clone(wire[:min(piece, len(wire))])
		wire = wire[len(p):]
		for len(p) > 0 {
			var got []byte
			var ev event
			got, p, ev = d.step(p)
			data = append(data, got...)
			if ev == evControl && d.msg == want {
				data, found = nil, true
			}
		}
	}
	return data, found
}

func TestWire(t *testing.T) {
	n := nonce{esc, 0, 1, esc, esc}
	tests := []struct {
		name string
		wire []byte
		data []byte
		evs  []event
	}{
		{"data before any control is dropped", []byte("abc"), nil, nil},
		{"cut control, then a whole one", concat([]byte{esc, 1, 1, 1, 9}, hello(n), []byte("x")), []byte("x"), []event{evControl}},
		{"cut right after an escape", concat(hello(n), []byte{'a', esc}, hello(n), []byte("b")), []byte("ab"), []event{evControl, evControl}},
		{"literal escape", concat(hello(n), []byte{esc, 0, 'a', esc, 0}), []byte{esc, 'a', esc}, []event{evControl}},
		{"bad escape drops up to the next control", concat(hello(n), []byte{'a', esc, 7, 'b', esc, 0, 'c'}, hello(n), []byte("d")), []byte("ad"), []event{evControl, evBroken, evControl}},
		{"bad escape within a control", concat([]byte{esc, 1, 1, esc, 9}, []byte("zz"), hello(n), []byte("d")), []byte("d"), []event{evBroken, evControl}},
		{"unknown kind", concat(control{kind: 9, version: 1, nonce: n}.wire(), []byte("zz"), hello(n), []byte("d")), []byte("d"), []event{evBroken, evControl}},
		{"version zero", concat(control{kind: kindHello, nonce: n}.wire(), []byte("zz")), nil, []event{evBroken}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			for piece := 1; piece <= len(tt.wire); piece++ {
				var d decoder
				var data []byte
				var evs []event
				for wire := bytes.Clone(tt.wire); len(wire) > 0; {
					p := wire[:min(piece, len(wire))]
					wire = wire[len(p):]
					for len(p) > 0 {
						var got []byte
						var ev event
						got, p, ev = d.step(p)
						data = append(data, got...)
						if ev != evNone {
							evs = append(evs, ev)
						}
					}
				}
				if !bytes.Equal(data, tt.data) {
					t.Fatalf("in pieces of %d: got data %q, want %q", piece, data, tt.data)
				}
				if string(eventBytes(evs)) != string(eventBytes(tt.evs)) {
					t.Fatalf("in pieces of %d: got events %v, want %v", piece, evs, tt.evs)
				}
			}
		})
	}
}

// writes keeps what each call wrote.
type writes [][]byte

func (w *writes) Write(p []byte) (int, error) {
	*w = append(*w, bytes.Clone(p))
	return len(p), nil
}

// TestWriteEscaped: what comes out is what went in, and few calls carry it: each is one
// into the kernel.
func TestWriteEscaped(t *testing.T) {
	tests := map[string]struct {
		data []byte
		most int // calls of Write
	}{
		"nothing":         {nil, 1},
		"text":            {bytes.Repeat([]byte("abcdefgh"), writeChunk/8), 1},
		"even":            {uniform(writeChunk), 1},
		"one in 64":       {bytes.Repeat(append([]byte{esc}, make([]byte, 63)...), writeChunk/64), 1},
		"nothing but E":   {bytes.Repeat([]byte{esc}, writeChunk), 4},
		"E at both ends":  {concat([]byte{esc}, make([]byte, writeChunk-2), []byte{esc}), 1},
		"many E, in part": {concat(bytes.Repeat([]byte{esc}, 100_000), make([]byte, writeChunk-100_000)), 3},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			var w writes
			sent, err := writeEscaped(&w, tt.data)
			wire := bytes.Join(w, nil)
			if err != nil || sent != len(wire) {
				t.Fatalf("sent %d of %d bytes, %v", sent, len(wire), err)
			}
			if len(w) > tt.most {
				t.Errorf("%d calls of Write, want at most %d", len(w), tt.most)
			}
			want := control{kind: kindAck, version: version}
			var d decoder
			if data, _ := decodeAll(&d, concat(want.wire(), wire), 4096, want); !bytes.Equal(data, tt.data) {
				t.Error("it decodes to other bytes than were written")
			}
		})
	}
}

func TestEscapeIsNeverInText(t *testing.T) {
	for r := rune(0); r <= 0x10FFFF; r++ {
		if bytes.IndexByte([]byte(string(r)), esc) >= 0 {
			t.Fatalf("%U holds the escape byte", r)
		}
	}
}

// FuzzResync: whatever lies in the stream, cut wherever, the bytes after the awaited
// control message are exactly those that were written.
func FuzzResync(f *testing.F) {
	f.Add([]byte("old"), []byte("new"), uint8(1))
	f.Add([]byte{esc}, []byte{esc, 0, 1, esc}, uint8(2))
	f.Add([]byte{esc, 1, 2}, []byte{}, uint8(3))
	f.Add(concat(hello(nonce{1}), []byte{'x', esc}), []byte{esc, esc}, uint8(7))
	f.Add([]byte{esc, 1, 2, 1, 0, 0, esc}, bytes.Repeat([]byte{esc}, 40), uint8(5))
	f.Fuzz(func(t *testing.T, old, payload []byte, piece uint8) {
		want := control{kind: kindAck, version: version, nonce: newNonce()}
		wire := concat(old, want.wire(), appendEscaped(nil, payload))
		var d decoder
		data, found := decodeAll(&d, wire, int(piece)+1, want)
		if !found {
			t.Fatalf("the message behind %x was not seen", old)
		}
		if !bytes.Equal(data, payload) {
			t.Fatalf("behind %x: got %x, want %x", old, data, payload)
		}
	})
}

// FuzzDecoder: no bytes make it deliver more than it was given, whatever the pieces,
// and how they are cut makes no difference.
func FuzzDecoder(f *testing.F) {
	f.Add([]byte{esc, 1, esc, 1, 1, 1}, uint8(1))
	f.Add(concat(hello(nonce{}), []byte("abc"), []byte{esc, 0, esc, esc, 0}), uint8(3))
	f.Fuzz(func(t *testing.T, wire []byte, piece uint8) {
		var a, b decoder
		never := control{}
		whole, _ := decodeAll(&a, wire, len(wire)+1, never)
		parts, _ := decodeAll(&b, wire, int(piece)+1, never)
		if !bytes.Equal(whole, parts) {
			t.Fatalf("whole %x, in pieces of %d %x", whole, int(piece)+1, parts)
		}
		if len(whole) > len(wire) {
			t.Fatalf("%d bytes decoded to %d", len(wire), len(whole))
		}
	})
}

func hello(n nonce) []byte { return control{kind: kindHello, version: version, nonce: n}.wire() }

func concat(parts ...[]byte) []byte { return bytes.Join(parts, nil) }

func eventBytes(evs []event) (b []byte) {
	for _, e := range evs {
		b = append(b, byte(e))
	}
	return b
}
